# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Four guests: many messages between all of them, on a network with loss and reordering, and Open MPI. LENGTH is the number of messages."""

import pytest
import test_data
import traffic
from test_data import CONTENTS_PORT, DATA, mpi4py, mpirun

MINUTES = 3
COMBINATIONS = {"all": ["rust cloud-amd64"], "named": ["c cloud-amd64"]}
GUESTS = {**test_data.GUESTS, "count": 4}


def test_messages(request, guests, ktap):
    """Each message arrives once and unchanged."""
    program = f"env EFA_MESSAGES={request.config.option.length or 50000} {DATA}/contents.py"
    others = range(1, guests.count)
    with traffic.network(guests, traffic.LOSS_AND_REORDERING):
        servers = [traffic.Program(guests, guest, f"{program} serve") for guest in others]
        for server in servers:
            server.await_port(CONTENTS_PORT)
        client = traffic.Program(guests, 0, f"{program} soak {' '.join(f'guest{guest}' for guest in others)}")
        limit = max(traffic.LIMIT, (request.config.option.length or 0) // 100)
        ktap(traffic.tried(traffic.finish, client, *servers, limit=limit))


@pytest.mark.tier("named")
def test_mpi(guests, ktap):
    assert set(mpi4py(guests, "helloworld", r"on (guest\d+)")) == {f"guest{guest}" for guest in range(guests.count)}
    assert mpi4py(guests, "ringtest -n 1000 -l 20", "time for")
    ktap(mpirun(guests, f"python3 {DATA}/mpi_contents.py"))


def test_nothing_is_left_behind(guests):
    traffic.left_behind(guests)
