# What Starlette and python-multipart make of forms: frames on standard input in pairs (a length of four bytes,
# little-endian, then the Content-Type, or the body), one line for each pair on standard output: each part's name and value
# in hexadecimal, with an at sign between them for a file, an equals sign for another.
import asyncio
import struct
import sys

from starlette.datastructures import Headers, UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request


def frames():
    while head := sys.stdin.buffer.read(4):
        yield sys.stdin.buffer.read(struct.unpack("<I", head)[0])


async def read(content_type, body):
    sent = False

    async def receive():
        nonlocal sent
        if sent:
            return {"type": "http.disconnect"}
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    scope = {"type": "http", "method": "POST", "path": "/", "query_string": b"", "headers": [(b"content-type", content_type)], "app": object()}
    request = Request(scope, receive)
    kind = Headers(raw=scope["headers"]).get("content-type")
    out = []
    try:
        form = await request.form()
    except HTTPException:
        return "refused"
    for name, value in form.multi_items():
        if isinstance(value, UploadFile):
            out.append(name.encode().hex() + "@" + (await value.read()).hex())
        else:
            out.append(name.encode().hex() + "=" + value.encode().hex())
    from python_multipart.multipart import parse_options_header

    if parse_options_header(kind)[0] != b"multipart/form-data":
        return "refused"  # FastAPI finds no form
    return "\t".join(out) or "empty"


everything = list(frames())
for content_type, body in zip(everything[::2], everything[1::2]):
    print(asyncio.run(read(content_type, body)))
