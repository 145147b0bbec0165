"""A Ray cluster of two nodes on loopback with one CPU each: python -m tests.system.ray_nodes FOLDER.

Prints its address; then answers each line it reads with one of JSON, and ends at the end of its input.

line    answer
state   {"actors": alive, "groups": placement groups that have room or wait for it}
lose    {}, once the node beside the head was killed and another has taken its place
"""

from __future__ import annotations

import json
import os
import sys

os.environ |= {
    "RAY_TMPDIR": sys.argv[1],
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_prestart_worker_first_driver": "0",
    "RAY_enable_worker_prestart": "0",
    "RAY_worker_niceness": "0",
}

import ray
from ray._private.node import Node
from ray.cluster_utils import Cluster

STORE_BYTES = 80 * 2**20


def add_node(cluster: Cluster) -> Node:
    return cluster.add_node(
        num_cpus=1,
        node_ip_address="127.0.0.1",
        object_store_memory=STORE_BYTES,
        include_dashboard=False,
    )


def main() -> None:
    cluster = Cluster()
    add_node(cluster)
    second = add_node(cluster)
    ray.init(address=cluster.address, log_to_driver=False, logging_level="error", configure_logging=False)
    print(json.dumps(cluster.address), flush=True)
    for line in sys.stdin:
        answer: dict[str, int] = {}
        if line.strip() == "state":
            groups = cluster.global_state.placement_group_table().values()
            actors = cluster.global_state.actor_table(None).values()
            answer["actors"] = sum(actor["State"] != "DEAD" for actor in actors)
            answer["groups"] = sum(group["state"] != "REMOVED" for group in groups)
        else:
            cluster.remove_node(second, allow_graceful=False)
            second = add_node(cluster)
        print(json.dumps(answer), flush=True)
    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    main()
