# SPDX-License-Identifier: Apache-2.0
"""A client of Python's websockets: client.py URL CASE... prints what came of each case."""
import asyncio
import sys

import websockets

url, cases = sys.argv[1], sys.argv[2:]


def connect(**more):
    more.setdefault("compression", None)
    return websockets.connect(url, max_size=1 << 26, ping_interval=None, **more)


async def echo(size):
    data = (b"weir" * (int(size) // 4 + 1))[: int(size)]
    async with connect() as s:
        await s.send(data)
        return "ok" if await s.recv() == data else "something else came back"


async def fragments(_):
    async with connect() as s:
        await s.send(["one ", "two ", "three"])
        first = await s.recv()
        await s.send("fragments")
        return first + ", " + await s.recv()


async def deflate(_):
    text = "compressible " * 20000
    async with connect(compression="deflate") as s:
        await s.send(text)
        if await s.recv() != text:
            return "something else came back"
        return ",".join(e.name for e in s.extensions)


async def ping(_):
    async with connect() as s:
        pong = await s.ping("are you there")
        await asyncio.wait_for(pong, 20)
        return "are you there"


async def leave(code):
    s = await connect()
    await s.close(int(code), "leaving")
    return f"{s.close_code} {s.close_reason}"


async def left(code):
    s = await connect()
    await s.send(f"close {code}")
    await s.wait_closed()
    return f"{s.close_code} {s.close_reason}"


async def main():
    for c in cases:
        name, _, arg = c.partition(" ")
        try:
            said = await globals()[name](arg)
        except Exception as e:  # whatever it is, the test shows it
            said = f"failed: {e!r}"
        print(f"{c}: {said}", flush=True)


asyncio.run(main())
