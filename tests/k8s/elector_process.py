"""One elector as a process of its own: ``python -m tests.k8s.elector_process URL NAME`` prints what it believes.

Each line is the moment before the question, on the machine's clock, and the answer: ``1234.5 True``.
"""

import asyncio
import sys

from controller.cluster import Cluster
from controller.leader import Durations, Elector, elapsed


async def main(url: str, name: str) -> None:
    cluster = await Cluster.connect(url)
    elector = Elector(cluster, "default", "gpuscale", name, Durations(lease=4.0, renew_deadline=3.0, retry=0.5))
    campaign = asyncio.create_task(elector.run())
    while not campaign.done():
        moment = elapsed()
        print(f"{moment:.6f} {elector.is_leader()}", flush=True)
        await asyncio.sleep(0.02)
    await campaign


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
