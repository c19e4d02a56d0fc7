"""``python -m tests.simulation.regions_swarm --seed N``: lives of two regions of several nodes, by seed.

The last line of a life is ``trace <hash> events <n> violations <n>``; the exit code is 0 only without violations.
"""

from tests.simulation.lives_command import command
from tests.simulation.regions_swarm.life import play
from tests.simulation.regions_swarm.plan import Fault

main = command("regions_swarm", play, Fault)

if __name__ == "__main__":
    main()
