# What Python's json and pydantic make of bodies: frames on standard input (a length of four bytes, little-endian, then the
# body), one line for each on standard output, as test/parsers.Show writes values.
import json
import struct
import sys
from typing import Optional

from pydantic import TypeAdapter, ValidationError

readers = {"n": TypeAdapter(Optional[int]), "stream": TypeAdapter(Optional[bool]), "model": TypeAdapter(Optional[str])}


def show(v):
    if v is None:
        return "null"
    if v is True:
        return "true"
    if v is False:
        return "false"
    if isinstance(v, int):
        sys.set_int_max_str_digits(0)
        s = "i%d" % v
        sys.set_int_max_str_digits(4300)
        return s
    if isinstance(v, float):
        return "fnan" if v != v else "f" + struct.pack(">d", v).hex()
    if isinstance(v, str):
        return "s" + v.encode("utf-8", "surrogatepass").hex()
    if isinstance(v, list):
        return "[" + ",".join(show(e) for e in v) + "]"
    return "{" + ",".join(show(k) + ":" + show(e) for k, e in v.items()) + "}"


def read(body, name):
    if not isinstance(body, dict) or name not in body:
        return "-"
    try:
        return show(readers[name].validate_python(body[name]))
    except ValidationError:
        return "refused"


def frames():
    while head := sys.stdin.buffer.read(4):
        yield sys.stdin.buffer.read(struct.unpack("<I", head)[0])


for frame in frames():
    try:
        sys.setrecursionlimit(1000)  # the usual one, for the parser alone
        body = json.loads(frame)
        sys.setrecursionlimit(10000)
        print(show(body), read(body, "n"), read(body, "stream"), read(body, "model"), sep="\t")
    except (ValueError, RecursionError):
        print("refused")
