"""Mutual TLS between JAX's coordinator and the hosts of a job, from the secret that they share.

Every host derives the same two private keys from the secret: one of an authority that signs, one of the hosts. So each
makes its own certificates, which the others accept, and none has to be distributed. JAX supports this from 0.12 on.
"""

from __future__ import annotations

import datetime
import hmac
import inspect
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.x509 import Certificate

    from trainer.hosts.bootstrap import Host

# Number of points of the curve P-256 (SEC 2, version 2.0, section 2.4.2): private keys are 1 to this number - 1.
_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
# The secret, which is new for each workload, limits the validity. Clocks of hosts differ, so the dates do not.
_FROM, _UNTIL = datetime.datetime(2000, 1, 1), datetime.datetime(9999, 12, 31)


def credentials(host: Host, initialize: Callable[..., Any]) -> dict[str, Any]:
    """Return the arguments of mutual TLS for `jax.distributed.initialize`, or none if this JAX or this job has none.

    Certificates are valid among the hosts of one attempt of one job. The files exist in this process's memory only.
    """
    if "mtls_cert_file" not in inspect.signature(initialize).parameters or not host.secret:
        return {}
    uri = f"spiffe://xpk/{host.job_id or host.workload or 'job'}/{host.attempt}/"
    authority, certificate, key = pem_files(host.secret, uri)
    return {
        "mtls_ca_file": _memory_file("authority", authority),
        "mtls_cert_file": _memory_file("certificate", certificate),
        "mtls_key_file": _memory_file("key", key),
        "mtls_peer_uri_prefix": uri,
        "verify_secure_credentials": True,
    }


def pem_files(secret: bytes, uri: str) -> tuple[bytes, bytes, bytes]:
    """Return, as PEM, the certificate of the authority, and the hosts' certificate for a URI and its private key."""
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    authority, host = _private_key(secret, "authority", uri), _private_key(secret, "host", uri)
    signed = _certificate(authority, authority, ""), _certificate(host, authority, uri)
    private = host.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return signed[0].public_bytes(Encoding.PEM), signed[1].public_bytes(Encoding.PEM), private


def _private_key(secret: bytes, role: str, uri: str) -> EllipticCurvePrivateKey:
    """Derive a key by HMAC. Of 512 bits, the remainder is uniform within 2^-256."""
    from cryptography.hazmat.primitives.asymmetric import ec

    bits = hmac.digest(secret, f"coordinator {role} {uri}".encode(), "sha512")
    return ec.derive_private_key(1 + int.from_bytes(bits, "big") % (_ORDER - 1), ec.SECP256R1())


def _certificate(key: EllipticCurvePrivateKey, signer: EllipticCurvePrivateKey, uri: str) -> Certificate:
    """Return a certificate of a key: for a URI, or, without one, of the authority."""
    from cryptography import x509
    from cryptography.hazmat.primitives.hashes import SHA256

    def name(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])

    builder = (
        x509.CertificateBuilder()
        .subject_name(name("host" if uri else "authority"))
        .issuer_name(name("authority"))
        .public_key(key.public_key())
        .serial_number(2 if uri else 1)
        .not_valid_before(_FROM)
        .not_valid_after(_UNTIL)
        .add_extension(x509.BasicConstraints(ca=not uri, path_length=None if uri else 0), critical=True)
    )
    if uri:
        names = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(uri)])
        builder = builder.add_extension(names, critical=False)
    return builder.sign(signer, SHA256())


def _memory_file(name: str, content: bytes) -> str:
    """Return the path of a file in memory, which gRPC reads again from time to time as long as this process lives."""
    descriptor = os.memfd_create(name)
    os.write(descriptor, content)
    return f"/proc/self/fd/{descriptor}"
