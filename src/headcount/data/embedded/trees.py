"""Sentences with gold dependency trees, in Universal Dependencies' terms, and the builder that both languages write them with."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TreeWord:
    """A word: its form, lemma, part of speech, the number of its head (from 1; 0 for the root) and its relation to it."""

    form: str
    lemma: str
    pos: str
    head: int
    relation: str


@dataclass(frozen=True, slots=True)
class Sentence:
    """Words in order; `str` gives the text, words set apart by spaces."""

    words: tuple[TreeWord, ...]

    def __str__(self) -> str:
        return " ".join(word.form for word in self.words)

    def conllu(self) -> str:
        """The sentence as a CoNLL-U block, with its closing empty line."""
        lines = [f"# text = {self}"]
        for number, word in enumerate(self.words, 1):
            lines.append("\t".join([str(number), word.form, word.lemma, word.pos, "_", "_", str(word.head), word.relation, "_", "_"]))
        return "\n".join([*lines, "", ""])


@dataclass(slots=True)
class TreeNode:
    """A word of a tree that is being built, with its dependents before and after it."""

    form: str
    lemma: str
    pos: str
    relation: str
    before: list[TreeNode]
    after: list[TreeNode]

    def in_sentence_order(self) -> list[TreeNode]:
        """This node and all below it, in the order of the sentence."""
        return (
            [n for child in self.before for n in child.in_sentence_order()]
            + [self]
            + [n for child in self.after for n in child.in_sentence_order()]
        )


def make_node(
    form: str, lemma: str, pos: str, relation: str, before: list[TreeNode] | None = None, after: list[TreeNode] | None = None
) -> TreeNode:
    """Returns a node with dependents."""
    return TreeNode(form, lemma, pos, relation, before or [], after or [])


def build_sentence_with_full_stop(root: TreeNode) -> Sentence:
    """Returns the sentence of a tree, with a full stop added."""
    root.after.append(make_node(".", ".", "PUNCT", "punct"))
    order = root.in_sentence_order()
    numbers = {id(n): i for i, n in enumerate(order, 1)}
    head = {id(child): numbers[id(n)] for n in order for child in (*n.before, *n.after)}
    return Sentence(tuple(TreeWord(n.form, n.lemma, n.pos, head.get(id(n), 0), n.relation) for n in order))
