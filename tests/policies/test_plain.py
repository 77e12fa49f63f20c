"""The root alone."""

from c2t.policies import Plain
from tests.toys import TableDraft, random_table, root_of


def test_plain_is_the_root_and_asks_no_draft() -> None:
    draft = TableDraft(random_table(8))
    tree = Plain()(draft, root_of(3, 5))
    assert tree.token.tolist() == [[3], [5]]
    assert tree.sizes.tolist() == [1, 1]
    assert draft.expanded == []
    assert Plain()(None, root_of(3)).size == 1
