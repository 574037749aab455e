"""How text is cut: one test for each way in which sentence splitters are known to fail, then the laws."""

import time
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from canopy_backend.fragments import fragment, render
from canopy_backend.fragments.text import WINDOW, text_spans
from canopy_backend.items import TextItem


def parts(text):
    return [text[start:end] for start, end in text_spans(text).tolist()]


def stripped(text):
    return [part.strip() for part in parts(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Pump No. 4 leaks. See Fig. 2 for the seal.", ["Pump No. 4 leaks.", "See Fig. 2 for the seal."]),
        ("Vol. 3 is lost. Eq. 5 holds in Sec. 2 too.", ["Vol. 3 is lost.", "Eq. 5 holds in Sec. 2 too."]),
        ("It weighs approx. 3 t. It floats.", ["It weighs approx. 3 t. It floats."]),
        ("Use a rope, e.g. hemp. Tie it.", ["Use a rope, e.g. hemp.", "Tie it."]),
        ("It holds salts, i.e. brine. Drain it.", ["It holds salts, i.e. brine.", "Drain it."]),
    ],
)
def test_no_cut_after_an_abbreviation(text, expected):
    assert stripped(text) == expected


def test_a_title_stays_with_its_name():
    assert stripped("Dr. Okoye built the weir. She retired.") == ["Dr. Okoye built the weir.", "She retired."]


@pytest.mark.parametrize(
    "word",
    ["https://weir.example/a.b?depth=1.2!x", "v3.11.4", "/etc/weir.d/main.conf", "3.14", "flow.max()", "a.b@weir.org"],
)
def test_addresses_versions_and_paths_stay_in_one_piece(word):
    assert stripped(f"Read {word} before you start. Then stop.") == [f"Read {word} before you start.", "Then stop."]


def test_a_dot_inside_a_line_of_letters_ends_nothing():
    assert stripped("Weir.Gate is open. Valve.Shut is not.") == ["Weir.Gate is open.", "Valve.Shut is not."]


@pytest.mark.parametrize("mark", ["```", "~~~", "````"])
def test_a_code_fence_is_one_fragment(mark):
    fence = f"{mark}python\na = f(1). B = 2.\n\nc! D? E.\n{mark}\n"
    assert parts(f"Run this. Now:\n{fence}Done. Good.") == ["Run this. ", "Now:\n", fence, "Done. ", "Good."]


def test_a_fence_that_nothing_closes_is_prose():
    assert stripped("```\nThe gate opens. It closes.") == ["```\nThe gate opens.", "It closes."]


def test_a_fence_closes_only_with_a_mark_as_long():
    text = "````\n```\nA. B. Cc. Dd\n```\n````\nEnd."
    assert parts(text) == [text[:-4], "End."]


def test_list_markers_stay_with_their_line():
    text = "1. Wash the gate. Dry it.\n2. Oil it.\n   - twice a year\n   * with care. Slowly."
    assert stripped(text) == [
        "1. Wash the gate.",
        "Dry it.",
        "2. Oil it.",
        "- twice a year",
        "* with care.",
        "Slowly.",
    ]


@pytest.mark.parametrize(
    "rows",
    [
        ["| Gate | Note |\n| --- | --- |\n", "| A. B | Open. Shut! |\n", "| C | No. Yes? |\n"],
        ["Gate | Note\n--- | ---\n", "A. B | Open. Shut!\n", "C | No. Yes?\n"],
    ],
)
def test_tables_in_text_are_cut_between_lines_only(rows):
    assert parts("".join(["The gates. All:\n", *rows, "\nThe end."])) == [
        "The gates. ",
        "All:\n",
        *rows[:-1],
        rows[-1] + "\n",
        "The end.",
    ]


def test_a_rule_below_a_line_without_bars_is_no_table():
    assert stripped("The gate\n---\nIt opens. It shuts.") == ["The gate\n---\nIt opens.", "It shuts."]


def test_a_heading_is_a_fragment():
    assert stripped("# Gate 2. The east\nIt opens. It shuts.") == ["# Gate 2. The east", "It opens.", "It shuts."]


def test_full_width_stops_end_sentences():
    assert parts("水门建于1931年。谁设计的？是林文！不错。") == ["水门建于1931年。", "谁设计的？", "是林文！", "不错。"]


def test_danda_ends_a_sentence():
    assert stripped("यह द्वार है। वह बाँध है।") == ["यह द्वार है।", "वह बाँध है।"]


@pytest.mark.parametrize("quote", ["「门开了。门关了！」", "『门开了。「是吗？」他问。』", "「门开了。『是吗？』」"])
def test_no_cut_inside_a_full_width_quotation(quote):
    assert any(quote in part for part in parts(f"他写道{quote}。之后离开。"))


def test_a_closing_mark_stays_with_its_sentence():
    assert parts("他走了。」她笑了。") == ["他走了。」", "她笑了。"]
    assert stripped('"It opens." She left. (It shut. It did.)') == ['"It opens."', "She left.", "(It shut. It did.)"]


def test_what_has_no_letter_or_digit_joins_a_neighbour():
    text = "Gates ........ 3\n\n\n.\n.\n!?\nThe weir dries at noon."
    assert parts(text) == [text[:-23], "The weir dries at noon."]
    assert parts("...\n\nThe weir.") == ["...\n\nThe weir."]


def test_an_opening_mark_goes_with_what_follows():
    assert parts("The weir.\n\n“\n\nOpen it.”") == ["The weir.\n\n", "“\n\nOpen it.”"]


@pytest.mark.parametrize("text", ["Pi is 3.14. Done!", "Il sort .. Puis, il revient.", " a. \r\n b\t.\n"])
def test_nothing_is_lost(text):
    assert "".join(parts(text)) == text


def test_a_decimal_is_not_cut_and_no_character_is():
    assert parts("水温は36.5度です。") == ["水温は36.5度です。"]
    assert parts("Open. \u0301it is. Shut.") == ["Open. \u0301it is. ", "Shut."]
    assert parts("Go 👩\u200d🔧. 🇫🇷 won. End.")[-1] == "End."


def test_equal_sentences_have_their_own_places():
    assert text_spans("Gate open. Gate shut. Gate open.").tolist() == [[0, 11], [11, 22], [22, 32]]


def test_offsets_survive_odd_white_space():
    text = "Aa  bb.\r\n\u00a0Cc dd.\u2003\x85Ee."
    assert parts(text) == ["Aa  bb.\r\n\u00a0", "Cc dd.\u2003\x85", "Ee."]


def test_offsets_count_code_points_and_text_is_not_normalised():
    text = "Cafe\u0301 🎉 opened. Ω ended."
    assert text_spans(text).tolist() == [[0, 16], [16, 24]]
    item = TextItem(id="c", text=text)
    assert render(item, fragment(item), 0, 1) == "Cafe\u0301 🎉 opened. "


@pytest.mark.parametrize("text", ["", "  \n", "\x00", ".", "「"])
def test_text_without_words_is_one_fragment(text):
    assert text_spans(text).tolist() == [[0, len(text)]]


def test_the_window_of_the_splitter_does_not_show():
    sentence = "The gate of the north weir was opened again in the spring of that year. "
    assert parts(sentence * 60) == [sentence] * 59 + [sentence]
    long = "word " * (WINDOW // 2) + "end. "
    assert parts(long + "Short. " + long) == [long, "Short. ", long]


def test_a_panic_of_the_splitter_is_not_ours(monkeypatch):
    class PanicException(BaseException):
        pass

    def panic(language, text):
        raise PanicException

    monkeypatch.setattr("sentencex.segment", panic)
    assert parts("One. Two.\n\nThree.") == ["One. Two.\n\n", "Three."]


HOSTILE = [
    ".",
    '"',
    "'",
    "\n",
    "\r\n",
    " ",
    "\u2028",
    "「",
    "。」",
    "我是。",
    "(",
    "a. ",
    "```\n",
    "| \n",
    "-|-\n",
    "x",
    "\u0301",
]


@pytest.mark.parametrize("unit", HOSTILE)
def test_time_is_linear_in_the_length(unit):
    size = 1 << 17
    text = (unit * (size // len(unit) + 1))[:size]
    begin = time.process_time()
    spans = text_spans(text)
    # An eighth of the largest item; a square in the length would take minutes.
    assert time.process_time() - begin < 2
    assert spans[-1, 1] == size


MARKS = ["「", "」", "『", "』", "“", "”", '"', "...", "!", "？", "।", "(", ")", "[3]", ".", ". ", "\u0301", "\u200d"]
SPACES = ["\n\n", "\r\n", "\r", "\n", " ", "\t", "\x85", "\u2028", "\u00a0", "\x00"]
LAYOUT = ["```\n", "~~~\n", "| a | b |\n", "- ", "1. ", "# H\n", "a|b\n", "-|-\n"]
WORDS = ["The gate. ", "No. 4 ", "e.g. ", "Dr. ", "x", "9", "水门。", "👩\u200d🔧", "🇫🇷"]
PIECES = st.sampled_from([*MARKS, *SPACES, *LAYOUT, *WORDS])


@settings(max_examples=200, deadline=None)
@given(st.one_of(st.lists(PIECES, max_size=40).map("".join), st.text(max_size=60)))
def test_laws_of_text_spans(text):
    spans = text_spans(text).tolist()
    assert spans[0][0] == 0
    assert spans[-1][1] == len(text)
    assert all(left[1] == right[0] for left, right in pairwise(spans))
    found = [text[start:end] for start, end in spans]
    assert "".join(found).encode() == text.encode()
    if len(found) > 1:
        assert all(any(character.isalnum() for character in part) for part in found)
    for before, after in pairwise(found):
        assert not after[0].isspace()
        assert after[0] not in "\u0301\u200d"
        assert before[-1] != "\u200d"


@settings(max_examples=12, deadline=None)
@given(st.integers(1, 3000))
def test_any_number_of_sentences(count):
    assert len(text_spans("The gate opens. " * count)) == count
