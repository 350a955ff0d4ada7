"""Keys and certificates of a throw-away control plane, valid for one day."""

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey
ONE_DAY = datetime.timedelta(days=1)


def write(folder: Path) -> None:
    """Write ca, server, front-proxy (.crt and .key) and the service-account key pair into ``folder``."""
    ca_key = ec.generate_private_key(ec.SECP256R1())
    ca_name = _name("gpuscale-test-ca")
    _key(folder / "ca.key", ca_key)
    _certificate(
        folder / "ca.crt",
        _builder(ca_name, ca_name, ca_key).add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True),
        ca_key,
    )
    names = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    for stem, common_name in (("server", "kube-apiserver"), ("front-proxy", "front-proxy")):
        key = ec.generate_private_key(ec.SECP256R1())
        _key(folder / f"{stem}.key", key)
        builder = _builder(_name(common_name), ca_name, key).add_extension(names, critical=False)
        _certificate(folder / f"{stem}.crt", builder, ca_key)
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
