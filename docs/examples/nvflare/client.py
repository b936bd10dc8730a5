"""What runs at each site: training on the members that the ledger says are its own."""

import sys

import nvflare.client as flare
from owner import local_update

from privaudit import Ledger

flare.init()
ledger = Ledger.load(sys.argv[1])
members = ledger.members_of(flare.get_site_name())
while flare.is_running():
    received = flare.receive()
    sent = local_update(received.params, members, seed=received.current_round)
    steps = {"NUM_STEPS_CURRENT_ROUND": len(members)}  # what the mean weighs by
    flare.send(flare.FLModel(params=dict(sent), meta=steps))
