from privaudit.federation.trainer import Task
from privaudit.trainers.zero_shot import ZeroShot
from tests.toy_federation import Play


def test_nothing_is_sent_and_everyone_uses_the_public_model(
    play: Play, task: Task
) -> None:
    played = play(ZeroShot(), rounds=1)
    assert played.rounds[0].messages == ()
    assert all(m["text"].equal(task.zero_shot) for m in played.models.values())
    assert ZeroShot().claim(task).epsilon == 0.0
