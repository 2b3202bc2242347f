from vitkit.tasks.report import Report, table


def test_the_last_epoch_comes_first_and_the_baselines_beside_it() -> None:
    result = {
        "accuracy": 0.98,
        "recall": 0.97,
        "best": 0.99,
        "averaged": True,
        "pictures": 1000,
        "epochs": 3,
        "steps": 60,
        "seconds": 9.6,
    }
    result["steps_since_resumed"] = 60
    lines = table(
        "accuracy", {**result, "samples_per_second": 1234.5, "baselines": {"5-NN on pixels": 0.9}}
    ).splitlines()
    assert lines[0] == "accuracy on 1,000 pictures held out"
    assert lines[1].split("  ")[0] == "averaged weights, last epoch" and lines[1].endswith(" 98.00%")
    assert lines[2].split("  ")[0] == "mean recall of the classes" and lines[2].endswith(" 97.00%")
    assert lines[3].split("  ")[0] == "the best epoch, picked in hindsight" and lines[3].endswith(" 99.00%")
    assert lines[4].split("  ")[0] == "5-NN on pixels" and lines[4].endswith(" 90.00%")
    assert lines[5] == "3 epochs, 60 steps, 10 s, 1,234 pictures/s"
    raw = table("accuracy", {**result, "averaged": False, "samples_per_second": 1.0, "baselines": {}})
    assert raw.splitlines()[1].startswith("last epoch  ")
    resumed = table("accuracy", {**result, "steps_since_resumed": 20, "samples_per_second": 1234.5, "baselines": {}})
    assert resumed.splitlines()[-1] == "3 epochs, 60 steps (20 since resumed), 10 s, 1,234 pictures/s"


def test_a_resumed_run_still_knows_what_it_left_out() -> None:
    before, after = Report(), Report()
    before.skipped = dict.fromkeys(["b.png is broken", "a.png is broken"])
    after.load_state_dict(before.state_dict())
    assert [*after.skipped] == ["a.png is broken", "b.png is broken"]
