"""TLS towards the API server: a private CA, a client certificate, and both again after they were rotated.

Why it exists: a certificate file is replaced while we run, and a session keeps its context; reading the new files into
that same context is what makes new connections use them.
"""

import ssl


class _NamedContext(ssl.SSLContext):
    """Checks the server's certificate for another name than the one in the URL (``tls-server-name``)."""

    server_name: str | None = None

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,  # noqa: FBT001, FBT002 - as in the standard library
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        return super().wrap_bio(incoming, outgoing, server_side, self.server_name or server_hostname, session)


class ClientTls:
    """One TLS context for all connections. Without ``ca_file`` the system's authorities count."""

    def __init__(
        self,
        ca_file: str | None = None,
        cert_file: str | None = None,
        key_file: str | None = None,
        *,
        verify: bool = True,
        server_name: str | None = None,
    ) -> None:
        """Read the files; raises OSError (ssl.SSLError is one) for files that are not there or no certificates."""
        self._ca_file = ca_file
        context = _NamedContext(ssl.PROTOCOL_TLS_CLIENT)
        context.server_name = server_name
        if not verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        elif not ca_file:
            context.load_default_certs()
        self.context: ssl.SSLContext = context
        self.load(cert_file, key_file)

    def load(self, cert_file: str | None, key_file: str | None) -> None:
        """Read the CA and the client's certificate, for connections made from now on. Raises OSError."""
        if self._ca_file:
            self.context.load_verify_locations(cafile=self._ca_file)
        if cert_file:
            self.context.load_cert_chain(cert_file, key_file)
