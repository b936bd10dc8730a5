from privaudit.core.provenance import NOT_STATED, Provenance, counted

HERE = {"bits": "portable", "builds": {"torch": "2.13.0", "numpy": "2.4.6"}}


def test_a_run_says_its_bits_builds_and_processor() -> None:
    found = Provenance.of({"computed": HERE, "processor": "Xeon"})
    assert str(found) == "portable bits of torch 2.13.0, numpy 2.4.6 on Xeon"


def test_a_run_that_went_on_elsewhere_says_both() -> None:
    before = {"computed": {"bits": "native", "builds": {}}, "processor": "EPYC"}
    found = Provenance.of({"computed": HERE, "processor": "Xeon", "earlier": [before]})
    assert found.processor == "EPYC, then Xeon"
    assert found.bits.startswith("native bits of , then portable bits of torch")


def test_operations_that_differ_are_named() -> None:
    found = Provenance.of({"computed": HERE | {"differing": ["exp", "sum"]}})
    assert found.bits.endswith("numpy 2.4.6, but for exp, sum")


def test_nothing_is_said_of_earlier_versions_and_of_trainings_elsewhere() -> None:
    for header in ({}, {"computed": HERE, "processor": "Xeon", "origin": "recorded"}):
        assert str(Provenance.of(header)) == NOT_STATED
    assert counted([]) == ""
