"""A file in object storage: writing the same bytes under the same name again is harmless by nature."""

import os

import obstore
from obstore.store import S3Store

from tollhouse import CallContext, dedup, did_not_happen, external, happened, tool, unknown


def _bucket() -> S3Store:
    return S3Store(
        "shop",
        endpoint=os.environ["S3_URL"],
        region="us-east-1",
        access_key_id="test",
        secret_access_key="test",  # noqa: S106 - the test server takes any
        virtual_hosted_style_request=False,
        client_options={"allow_http": True},
        retry_config={"max_retries": 0},  # retries have one owner, and it is not this client
    )


def find_upload(name, text):
    """The object is there with our bytes, or it is not; other bytes may have been there before ours, or come after."""
    try:
        found = obstore.get(_bucket(), name)
    except FileNotFoundError:  # the bucket was asked and has no such object; any other error is no answer
        return did_not_happen({"object": name, "status": "not found"})
    if bytes(found.bytes()) != text.encode():
        return unknown({"object": name, "status": "holds something else"})
    return happened(found.meta["e_tag"], reference=found.meta["e_tag"])


def remove_upload(record, ctx: CallContext):
    """Undo an upload: delete the object."""
    ctx.confirm_sync()
    obstore.delete(_bucket(), record.arguments["name"])
    return record.arguments["name"]


@tool(external(dedup=dedup.natural, departs="at_confirm"), reconcile=find_upload, compensate=remove_upload)
def upload(name: str, text: str, ctx: CallContext) -> str:
    """Store a text under a name, and return the object's tag."""
    ctx.confirm_sync()
    return obstore.put(_bucket(), name, text.encode())["e_tag"]
