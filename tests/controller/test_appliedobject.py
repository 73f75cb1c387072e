"""Who fights over an applied object is said after five repairs in ten minutes, and no longer once they are over."""

from tessera.controller.appliedobject import AppliedObject

WHO = 'conflict with "argocd-controller" using apps/v1: .spec.progressDeadlineSeconds'


def contested(*moments: float) -> AppliedObject:
    known = AppliedObject()
    for at_s in moments:
        known = known.with_contest(f"1\n {WHO}", at_s)
    return known


def rescaled(*versions: tuple[str, float]) -> AppliedObject:
    known = AppliedObject()
    for version, at_s in versions:
        known = known.with_rescaled(version, at_s)
    return known


def test_the_fifth_repair_of_fields_in_ten_minutes_names_them_and_their_manager() -> None:
    assert contested(0.0, 10.0, 20.0, 30.0).rival_notes("Deployment", 30.0) == ()
    assert contested(0.0, 700.0, 710.0, 720.0, 730.0).rival_notes("Deployment", 730.0) == ()
    (note,) = contested(0.0, 10.0, 20.0, 30.0, 40.0).rival_notes("Deployment", 40.0)
    assert note == (
        f"another client keeps changing the Deployment, and Tessera sets it back: 1 {WHO}: "
        "let that client leave these fields alone"
    )


def test_what_is_over_for_ten_minutes_is_not_said() -> None:
    known = contested(0.0, 10.0, 20.0, 30.0, 40.0)
    assert known.rival_notes("Deployment", 599.0)
    assert known.rival_notes("Deployment", 600.0) == ()
    assert len(known.with_contest(WHO, 1000.0).contested) == 1


def test_replicas_that_are_set_back_more_than_five_times_are_another_controllers() -> None:
    """The first is of the creation; a version that a store shows again counts once."""
    assert rescaled(*((f"{number}", 1.0) for number in range(5)), ("4", 2.0)).rival_notes("Deployment", 2.0) == ()
    known = rescaled(*((f"{number}", 1.0) for number in range(6)))
    (note,) = known.rival_notes("Deployment", 2.0)
    assert note.startswith("another controller, perhaps your own autoscaler, keeps changing the Deployment's replicas")
    assert known.rival_notes("Deployment", 601.0) == ()
    assert len(known.with_rescaled("9", 1000.0).rescaled) == 1
