"""``python -m tests.simulation.cluster_swarm --seed N``: lives of a region of three nodes, by seed.

The last line of a life is ``trace <hash> events <n> violations <n>``; the exit code is 0 only without violations.
"""

from tests.simulation.cluster_swarm.life import play
from tests.simulation.cluster_swarm.plan import Fault
from tests.simulation.lives_command import command

main = command("cluster_swarm", play, Fault)

if __name__ == "__main__":
    main()
