"""Producers by the Java client's rules, with up to five requests in flight, in transactions or not.

At each region one that writes plainly and one that writes in transactions, all to the same partitions. How many
requests are in flight, one to five, is drawn once for a seed (`max.in.flight.requests.per.connection`).
librdkafka's rules are `pipeliner`'s: it asks InitProducerId for its next epoch, and drains before.
"""

from collections.abc import Mapping
from typing import Final

from chaos.judges.pipelined import PipelinedHistory, judge_pipelined
from tests.simulation.swarm.workloads.java_producer import PARTITIONS, TOPIC, JavaProducer
from tests.simulation.swarm.workloads.java_transactions import JavaTransactions
from tests.simulation.swarm.workloads.setting import End, Load, Setting, TopicPlan

IN_FLIGHT_MAX: Final = 5


class JavaLoad(Load):
    """Two producers at each region."""

    def __init__(self, setting: Setting) -> None:
        """Nothing runs before `start`."""
        super().__init__(TopicPlan(name=TOPIC, partitions=PARTITIONS))
        self._in_flight_max = setting.chance.randint(1, IN_FLIGHT_MAX)
        self._producers: list[JavaProducer] = []
        for region in setting.reach.regions:
            for kind, name in ((JavaProducer, "java"), (JavaTransactions, "java-tx")):
                self._producers.append(
                    kind(
                        setting.reach.only(region),
                        f"{name}-{region}",
                        setting.drawn(),
                        setting.pace_s,
                        self._in_flight_max,
                    )
                )
        self.clients += self._producers

    def progress(self) -> Mapping[str, int]:
        """See `Workload`."""
        return {each.name: len(each.acked) for each in self._producers}

    def last_errors(self) -> Mapping[str, str]:
        """See `Workload`."""
        return {each.name: each.last_error for each in self._producers}

    def counts(self) -> Mapping[str, int]:
        """See `Workload`."""
        return {
            "requests in flight": self._in_flight_max,
            "epochs taken": sum(each.rules.bumps for each in self._producers),
            "given up": sum(each.rules.expired for each in self._producers),
            "transactions": sum(len(each.transactions) for each in self._producers),
            "refused for good": sum(len(each.refused) for each in self._producers),
        }

    async def violations(self, end: End) -> list[str]:
        """See `Workload`."""
        all_of = self._producers
        run = PipelinedHistory(
            acked=[said for each in all_of for said in each.acked],
            final={name: await end.places(name, TOPIC, PARTITIONS) for name in end.reach.regions},
            sent={key: numbers for each in all_of for key, numbers in each.sent.items()},
            refused={key for each in all_of for key in each.refused},
            transactions=[done for each in all_of for done in each.transactions],
            words=len(end.story.words),
        )
        found = judge_pipelined(run, end.excuse)
        if end.undisturbed:
            found += [
                f"without a word {each.name} is told that a sequence is wrong: {gap}"
                for each in all_of
                for gap in each.rules.gaps
            ]
        return found
