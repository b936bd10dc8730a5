from privaudit.core.seeds import Seeds
from privaudit.federated.federation import Federation, give_away, run_round
from privaudit.federated.trainer import Records, Task
from privaudit.trainers.zero_shot import ZeroShot


def test_nothing_is_sent_and_everyone_uses_the_public_model(
    task: Task, shards: dict[str, Records]
) -> None:
    federation = Federation.begin(ZeroShot(), task, shards, Seeds(0))
    (record,) = run_round(ZeroShot(), task, [federation], 0)
    models, _ = give_away(ZeroShot(), task, federation, 1)
    assert record.messages == ()
    assert all(m["text"].equal(task.zero_shot) for m in models.values())
    assert ZeroShot().claim(task).epsilon == 0.0
