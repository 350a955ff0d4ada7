"""Keys and certificates for tests, valid for one day."""

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey
ONE_DAY = datetime.timedelta(days=1)
LOOPBACK = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
FOR_CLIENTS = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH])


@dataclass(frozen=True)
class Authority:
    """Signs certificates into ``folder``; its own stand there as ``ca.crt`` and ``ca.key``."""

    folder: Path
    name: x509.Name
    key: ec.EllipticCurvePrivateKey

    def issue(self, stem: str, common_name: str, extension: x509.ExtensionType) -> None:
        """Write ``stem.crt`` and ``stem.key``."""
        key = ec.generate_private_key(ec.SECP256R1())
        _key(self.folder / f"{stem}.key", key)
        builder = _builder(_name(common_name), self.name, key).add_extension(extension, critical=False)
        _certificate(self.folder / f"{stem}.crt", builder, self.key)


def authority(folder: Path) -> Authority:
    """Make an authority and write its certificate and key into ``folder``."""
    made = Authority(folder, _name("gpuscale-test-ca"), ec.generate_private_key(ec.SECP256R1()))
    _key(folder / "ca.key", made.key)
    is_authority = x509.BasicConstraints(ca=True, path_length=0)
    builder = _builder(made.name, made.name, made.key).add_extension(is_authority, critical=True)
    _certificate(folder / "ca.crt", builder, made.key)
    return made


def write(folder: Path) -> None:
    """Write what a control plane needs: ca, server, front-proxy (.crt and .key), service-accounts (.key and .pub)."""
    signer = authority(folder)
    signer.issue("server", "kube-apiserver", LOOPBACK)
    signer.issue("front-proxy", "front-proxy", LOOPBACK)
    accounts = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    _key(folder / "service-accounts.key", accounts)
    (folder / "service-accounts.pub").write_bytes(
        accounts.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _builder(subject: x509.Name, issuer: x509.Name, key: PrivateKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - ONE_DAY)
        .not_valid_after(now + ONE_DAY)
    )


def _certificate(path: Path, builder: x509.CertificateBuilder, signer: ec.EllipticCurvePrivateKey) -> None:
    path.write_bytes(builder.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))


def _key(path: Path, key: PrivateKey) -> None:
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path.write_bytes(pem)
    path.chmod(0o600)
