"""What is signed: an in-toto Statement (v1) in a DSSE envelope with one Ed25519 signature.

Both are open formats that other tools read; the few lines that they take are written out here, so that a bundle can be
verified with the standard library and ``cryptography`` alone.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from typing import Any

from tollhouse.runs.proof.keys import Signer, key_id_of, public_key_of

PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "urn:tollhouse:proof:1"


class NotSigned(Exception):
    """The envelope does not hold what the key signed; says why."""


def statement(subjects: list[tuple[str, str]], predicate: dict[str, Any]) -> dict[str, Any]:
    """A statement about these (name, SHA-256)."""
    return {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": name, "digest": {"sha256": digest}} for name, digest in subjects],
        "predicateType": PREDICATE_TYPE,
        "predicate": predicate,
    }


def sign(signed: dict[str, Any], signer: Signer) -> dict[str, Any]:
    """The envelope of a statement."""
    payload = json.dumps(signed, separators=(",", ":"), ensure_ascii=True).encode()
    signature = signer.sign(pre_authentication(PAYLOAD_TYPE, payload))
    return {
        "payload": b64encode(payload).decode(),
        "payloadType": PAYLOAD_TYPE,
        "signatures": [{"keyid": signer.key_id, "sig": b64encode(signature).decode()}],
    }


def opened(envelope: dict[str, Any], public_pem: str) -> dict[str, Any]:
    """The statement, once its signature by that key holds. Raises :class:`NotSigned`."""
    from cryptography.exceptions import InvalidSignature

    try:
        key = public_key_of(public_pem)
        payload = exact_base64(envelope["payload"])
        ((given),) = envelope["signatures"]
        if set(envelope) != {"payload", "payloadType", "signatures"} or set(given) != {"keyid", "sig"}:
            raise NotSigned("The envelope has members that no envelope of a proof has.")
        if given["keyid"] != key_id_of(key):
            raise NotSigned(f"It is signed by the key {str(given['keyid'])[:80]}, not by {key_id_of(key)}.")
        key.verify(exact_base64(given["sig"]), pre_authentication(envelope["payloadType"], payload))
        if envelope["payloadType"] != PAYLOAD_TYPE:
            raise NotSigned("The envelope holds no in-toto statement.")
        loaded: dict[str, Any] = json.loads(payload)
    except InvalidSignature:
        raise NotSigned("The signature is not by that key over this statement.") from None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise NotSigned(f"The envelope cannot be read: {error}.") from None
    return loaded


def pre_authentication(payload_type: str, payload: bytes) -> bytes:
    """What DSSE signs (its PAE, version 1)."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def exact_base64(text: str) -> bytes:
    """The bytes of the one base64 text that says them. Raises :class:`ValueError` for another spelling of it."""
    data = b64decode(text, validate=True)
    if b64encode(data).decode() != text:
        raise ValueError("it is not the one base64 text of its bytes")
    return data
