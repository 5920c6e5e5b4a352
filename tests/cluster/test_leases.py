"""Which node works on which source, and what becomes of the sources of nodes that are lost or cannot see them."""

import pytest

from reelscribe.run.leases import LOSSES_ALONE, MOST_UNSEEN, SUSPECT_LOSSES, LeaseBook


def book_of(*paths: str) -> LeaseBook:
    """A book with sources that were never leased."""
    left = list(paths)

    def next_sources(most: int) -> list[str]:
        taken, left[:] = left[:most], left[most:]
        return taken

    return LeaseBook(next_sources)


def taken(book: LeaseBook, node: str, most: int = 9) -> list[str]:
    return [leased.path for leased in book.take(node, most)]


def lose_often(book: LeaseBook, times: int, node: str = "a") -> None:
    """Lose a node that works on whatever it can get."""
    for _ in range(times):
        assert book.take(node, 9)
        book.lose(node)


def test_each_source_is_leased_once():
    book = book_of("1", "2", "3")
    assert (taken(book, "a", 2), taken(book, "b", 2), taken(book, "a", 2)) == (["1", "2"], ["3"], [])
    assert (book.count("a"), book.count("b"), book.count("c")) == (2, 1, 0)
    assert book.holds("a", "1")
    assert not book.holds("b", "1")


def test_the_book_is_empty_when_all_is_done():
    book = book_of("1")
    assert book.is_empty
    assert taken(book, "a") == ["1"]
    assert not book.is_empty
    book.finish("a", "1")
    assert book.is_empty


def test_what_a_node_gives_back_is_leased_again():
    book = book_of("1", "2", "3")
    book.take("a", 3)
    book.give_back("a", ["2", "never leased"])
    assert (book.count("a"), taken(book, "b")) == (2, ["2"])
    book.give_back_all("a")
    assert taken(book, "b") == ["1", "3"]


def test_half_of_what_waits_moves_to_a_node_that_has_nothing():
    book = book_of("1", "2", "3", "4", "5", "6")
    book.take("a", 5)
    assert book.surplus({"a": 2, "b": 2}) == ("a", 2)
    assert book.surplus({"a": 5, "b": 2}) is None  # nothing waits
    assert book.surplus({"a": 2}) is None  # all have something to do
    book.give_back("a", ["1"])
    assert book.surplus({"a": 2, "b": 2}) is None  # there is something to lease


def test_the_sources_of_a_lost_node_are_leased_again_before_new_ones():
    book = book_of("1", "2", "3", "4")
    book.take("a", 2)
    assert not book.lose("a")  # nothing is suspected yet
    assert book.count("a") == 0
    assert taken(book, "b", 3) == ["1", "2", "3"]


def test_a_source_that_was_on_several_lost_nodes_is_leased_alone_and_last():
    book = book_of("1", "2", "3")
    for _ in range(SUSPECT_LOSSES):
        assert taken(book, "a", 1) == ["1"]
        book.lose("a")
    assert taken(book, "a", 1) == ["2"]
    assert taken(book, "a", 9) == ["3"]  # and not the suspect, as it would be beside others
    book.finish("a", "2")
    assert taken(book, "a") == []
    book.finish("a", "3")
    assert taken(book, "a") == ["1"]


def test_nothing_is_leased_beside_a_suspect():
    book = book_of("1", "2")
    lose_often(book, SUSPECT_LOSSES)
    assert taken(book, "a") == ["1"]  # alone, although both are suspects
    assert taken(book, "a") == []
    assert taken(book, "b") == ["2"]


def test_the_verdict_comes_after_bounded_losses_and_others_go_on():
    book = book_of("killer", "2")
    lose_often(book, SUSPECT_LOSSES)
    for number in range(LOSSES_ALONE):
        assert book.hopeless({"a"}) == []
        while taken(book, "a") != ["killer"]:
            book.finish("a", "2")
        assert book.lose("a"), f"with a suspect, loss {number}"
    ((path, reason),) = book.hopeless({"a"})
    assert path == "killer"
    assert "5 nodes were lost while they worked on it, 3 of them on nothing else" in reason
    assert taken(book, "a") == []
    assert book.is_empty


def test_a_suspect_that_can_be_done_is_done():
    book = book_of("1")
    lose_often(book, SUSPECT_LOSSES + LOSSES_ALONE - 1)
    assert taken(book, "a") == ["1"]
    book.finish("a", "1")
    assert book.hopeless({"a"}) == []
    assert book.is_empty


def test_what_a_node_cannot_see_goes_to_another_one():
    book = book_of("1")
    book.take("a", 1)
    book.unseen("a", "1", "no such file")
    assert taken(book, "a") == []
    assert book.hopeless({"a", "b"}) == []
    (leased,) = book.take("b", 1)
    assert leased == ("1", False)


def test_what_no_node_can_see_is_told_with_the_node_and_why():
    book = book_of("1")
    for node in ("a", "b"):
        book.take(node, 1)
        book.unseen(node, "1", "no such file")
    ((path, reason),) = book.hopeless({"a", "b"})
    assert path == "1"
    assert "it cannot be seen on the node a (no such file), nor on 1 other," in reason
    assert book.is_empty


def test_while_there_is_no_node_nothing_is_hopeless():
    book = book_of("1")
    book.take("a", 1)
    book.unseen("a", "1", "no such file")
    assert book.hopeless(()) == []


def test_what_the_driver_cannot_see_either_is_leased_to_any_node():
    book = book_of("1")
    book.take("a", 1)
    book.unseen("a", "1", "no such file")
    book.seen_nowhere("1")
    assert book.hopeless({"a"}) == []
    (leased,) = book.take("a", 1)
    assert leased == ("1", True)


@pytest.mark.parametrize("path", ["1", "2"])
def test_what_a_node_says_about_a_source_that_is_not_leased_to_it_changes_nothing(path):
    book = book_of("1")
    book.take("a", 1)
    book.take("b", 1)
    book.finish("b", path)
    book.unseen("b", path, "why")
    book.give_back("b", [path])
    assert book.holds("a", "1")
    assert not taken(book, "b")


def test_a_suspect_goes_to_a_node_that_was_not_lost_with_it():
    book = book_of("1")
    lose_often(book, SUSPECT_LOSSES + 1, "a")
    assert not book.take("a", 9, others=["b"])
    assert [leased.path for leased in book.take("b", 9, others=["a"])] == ["1"]
    book.lose("b")
    assert book.take("a", 9, others=["b"])  # it was lost with both, so either may try


def test_a_node_that_sees_little_does_not_take_all_names():
    names = [str(number) for number in range(10 * MOST_UNSEEN)]
    book, taken_by_blind = book_of(*names), 0
    while leased := book.take("blind", 10):
        taken_by_blind += len(leased)
        for each in leased:
            book.unseen("blind", each.path, "no such file")
    assert taken_by_blind == MOST_UNSEEN
    assert sorted(taken(book, "b", len(names))) == sorted(names)


def test_a_node_is_offered_what_it_may_see_when_others_have_taken_what_it_cannot():
    book = book_of(*map(str, range(MOST_UNSEEN + 1)))
    for each in book.take("blind", MOST_UNSEEN):
        book.unseen("blind", each.path, "no such file")
    assert not book.take("blind", 1)
    assert len(book.take("b", MOST_UNSEEN)) == MOST_UNSEEN
    assert taken(book, "blind", 1) == [str(MOST_UNSEEN)]
