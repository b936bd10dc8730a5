from privaudit.report.report_data import run_labels
from tests.privaudit.made_audits import make_audit


def test_a_single_run_is_called_by_its_trainer() -> None:
    assert run_labels([make_audit("promptfl", rate=0.1)]) == ["promptfl"]


def test_only_the_settings_that_differ_are_named() -> None:
    audits = [
        make_audit("promptfl", rate=0.1),
        make_audit("dp-fpl", mode="sound", epsilon=8.0, rank=4),
        make_audit("dp-fpl", mode="sound", epsilon=None, rank=4),
    ]
    assert run_labels(audits) == ["promptfl", "dp-fpl, ε 8", "dp-fpl, no ε"]


def test_runs_of_one_configuration_get_their_folder_name() -> None:
    audits = [make_audit("promptfl"), make_audit("promptfl")]
    labels = run_labels(audits)
    assert labels[0] == f"promptfl ({audits[0].run.name})"


def test_a_setting_that_is_called_like_a_field_of_runs_is_distinguished() -> None:
    audits = [make_audit("fedpt-dhapa", alpha=one) for one in (0.0, 1.0)]
    names = ["alpha of fedpt-dhapa 0", "alpha of fedpt-dhapa 1"]
    assert run_labels(audits) == [f"fedpt-dhapa, {name}" for name in names]
