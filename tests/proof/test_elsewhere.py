"""A proof travels: another process without network or store verifies it, and so do other people's libraries."""

from __future__ import annotations

import json
import subprocess
import sys
from base64 import b64decode
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.serialization import load_pem_public_key
from google.protobuf.json_format import ParseDict
from in_toto_attestation.v1.statement import Statement  # type: ignore[import-untyped]
from in_toto_attestation.v1.statement_pb2 import Statement as StatementMessage  # type: ignore[import-untyped]
from securesystemslib.dsse import Envelope
from securesystemslib.signer._key import SSlibKey

from tests.proof.scenes import TOOLS, bundle_of_run, finished_run, signer_of
from tests.support.houses import OpenHouse, on_one_store
from tollhouse.runs.proof.bundle import text_of

VERIFY = """
import sys
def refuse(event, _details):
    if event.startswith(("socket.connect", "socket.getaddrinfo", "socket.bind", "sqlite3.connect")):
        raise AssertionError(event)
sys.addaudithook(refuse)
from pathlib import Path
from tollhouse.runs.proof.verify import read_bundle, verify
verdict = verify(read_bundle(Path(sys.argv[1]).read_text()), key=Path(sys.argv[2]).read_text())
others = ("sqlite3", "asyncpg", "fastapi", "securesystemslib", "in_toto_attestation", "google.protobuf")
used = [name for name in others if name in sys.modules]
print(verdict.result.value, len(verdict.problems), used)
"""


@on_one_store
async def test_another_process_verifies_without_network_or_store(open_house: OpenHouse, tmp_path: Path) -> None:
    """The file and the public key are enough, in an empty folder; nothing but cryptography is imported for it."""
    house, signer = await open_house(*TOOLS), signer_of(tmp_path)
    _, run_id = await finished_run(house, twice=True)
    away = tmp_path / "away"
    away.mkdir()
    (away / "proof.json").write_text(text_of(await bundle_of_run(house, run_id, signer)))
    (away / "public.pem").write_text(signer.public_pem)
    await house.close()
    (tmp_path / "ledger.db").unlink()
    done = subprocess.run(
        [sys.executable, "-c", VERIFY, "proof.json", "public.pem"],
        cwd=away, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert (done.stdout.strip(), done.returncode) == ("pass 0 []", 0), done.stderr


@on_one_store
async def test_other_libraries_read_envelope_and_statement(open_house: OpenHouse, tmp_path: Path) -> None:
    """securesystemslib verifies the DSSE envelope; in-toto-attestation validates the statement in it."""
    house, signer = await open_house(*TOOLS), signer_of(tmp_path)
    _, run_id = await finished_run(house)
    bundle: Any = json.loads(text_of(await bundle_of_run(house, run_id, signer)))
    key = load_pem_public_key(bundle["public_key"].encode())
    theirs = SSlibKey.from_crypto(key, keyid=signer.key_id)
    accepted = Envelope.from_dict(json.loads(json.dumps(bundle["envelope"]))).verify([theirs], 1)
    assert list(accepted) == [signer.key_id]
    payload = json.loads(b64decode(bundle["envelope"]["payload"]))
    Statement.copy_from_pb(ParseDict(payload, StatementMessage())).validate()
    heads = {each["stream"]: each["head"]["hash"] for each in bundle["contents"]["streams"]}
    subjects = {each["name"]: each["digest"]["sha256"] for each in payload["subject"]}
    assert heads.items() <= subjects.items()
