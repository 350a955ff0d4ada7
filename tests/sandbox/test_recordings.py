from pathlib import Path

import pytest

from controller.sandbox.recordings import CostModel, Kind, LoadError, read_recording


def written(folder: Path, text: str | bytes, name: str = "load.csv") -> str:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return str(path)


@pytest.mark.parametrize(
    "text",
    [
        "t,demand\n0,1\n10,2.5\n30,0\n",
        "0,1\n10,2.5\n30,0\n",
        "t,demand\r\n0,1\r\n10,2.5\r\n30,0\r\n",
        '"t","demand"\n"0","1"\n"10","2.5"\n"30","0"\n',
        "\ufefft,demand\n0,1\n10,2.5\n30,0\n",
        "ts,value\n1655316000,1\n1655316010,2.5\n1655316030,0\n",
        "timestamp,rate\n1655316000000,1\n1655316010000,2.5\n1655316030000,0\n",
        "timestamp_ms,rate\n0,1\n10000,2.5\n30000,0\n",
        "value,time\n1,2026-11-30T12:00:00Z\n2.5,2026-11-30T12:00:10Z\n0,2026-11-30T12:00:30Z\n",
        "time,value\n2026-11-30 12:00:00,1\n2026-11-30 12:00:10.0000000,2.5\n2026-11-30T13:00:30+01:00,0\n",
        "TIME , Demand\n 0 , 1 \n\n 10 , 2.5 \n,\n30,0",
        "host,t,demand\na,0,1\na,10,2.5\nb,30,0\n",
    ],
)
def test_every_spelling_of_the_same_demand_reads_the_same(tmp_path: Path, text: str) -> None:
    recording = read_recording(written(tmp_path, text))
    assert recording.kind is Kind.DEMAND
    assert recording.seconds == pytest.approx((0.0, 10.0, 30.0))
    assert recording.amounts == (1.0, 2.5, 0.0)
    assert recording.span_seconds == pytest.approx(30.0)


@pytest.mark.parametrize(
    "text",
    [
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:17:03.9799600,5000,100\n2023-11-16 18:17:05.9799600,0,50\n",
        "timestamp_ms,input_length,output_length\n1000,5000,100\n3000,0,50\n",
    ],
)
def test_requests_become_busy_seconds_by_the_cost_model(tmp_path: Path, text: str) -> None:
    cost = CostModel(prefill_tokens_per_second=1000, decode_tokens_per_second=100)
    recording = read_recording(written(tmp_path, text), cost)
    assert recording.kind is Kind.REQUESTS
    assert recording.seconds == pytest.approx((0.0, 2.0))
    assert recording.amounts == pytest.approx((6.0, 0.5))


@pytest.mark.parametrize(
    ("text", "line", "wrong"),
    [
        ("", 1, "the file is empty"),
        ("\n\n\n", 1, "the file is empty"),
        ("t,demand\n", 1, "no row of data"),
        ("t,demand\n0,1\n", 2, "one row of data"),
        ("5,1\n", 1, "one row of data"),
        ("t,demand\n0,1\n5,nan\n", 3, "demand is nan"),
        ("t,demand\n0,1\n5,inf\n", 3, "demand is inf"),
        ("t,demand\n0,1\n5,1e300\n", 3, "demand 1e300 is too large"),
        ("t,demand\n0,1\n5,-3\n", 3, "demand -3 is negative"),
        ("t,demand\n0,1\n5,\n", 3, "demand is empty"),
        ("t,demand\n0,1\n5,lots\n", 3, "demand 'lots' is not a number"),
        ("t,demand\n0,1\n5,1_000\n", 3, "demand '1_000' is not a number"),
        ("t,demand\n0,1\n5,1\n\n4,1\n", 5, "time goes backwards by 1 s"),
        ("t,demand\n0,1\nnan,1\n", 3, "time 'nan' is not a time"),
        ("t,demand\n0,1\n2026-11-30T12:00:00Z,1\n", 3, "is not a time"),
        ("t,demand\n2026-13-40,1\n", 2, "time '2026-13-40' is not a time"),
        ("t,demand\n0,1\n0,2\n", 3, "every row has the same time"),
        ("t,demand\n0,0\n9,0\n", 3, "the demand is 0 in every row"),
        ("t,demand\n0,1,2\n", 2, "3 columns where 2 are expected"),
        ("t,demand\n0\n", 2, "1 columns where 2 are expected"),
        ("1,2,3\n", 1, "no header and 3 columns"),
        ("t;demand\n0;1\n", 1, "no column for the time"),
        ("t,cpu\n0,1\n", 1, "no column for the demand in t, cpu"),
        ("t,rate,value\n0,1,1\n", 1, "2 columns could be the demand: rate, value"),
        ('t,demand\n0,1\n5,"2\n', 3, "not CSV"),
        ('t,demand\n0,1\n5,"2"x\n', 3, "not CSV"),
        ("timestamp_ms,input_length,output_length\n0,1,1\n5,-1,1\n", 3, "input tokens -1 is negative"),
        (b"t,demand\n0,\xff\n", 2, "byte 0xff is not UTF-8 text"),
        (b"t,demand\n0,1\n\x00", 3, "a NUL byte"),
    ],
)
def test_a_bad_file_is_one_line_that_names_file_line_fault_and_cure(
    tmp_path: Path, text: str | bytes, line: int, wrong: str
) -> None:
    path = written(tmp_path, text)
    with pytest.raises(LoadError) as caught:
        read_recording(path)
    message = str(caught.value)
    assert message.startswith(f"{path}:{line}: ")
    assert wrong in message
    assert message.partition("; ")[2]
    assert len(message.splitlines()) == 1


@pytest.mark.parametrize(("name", "wrong"), [("missing.csv", "No such file"), (".", "Is a directory")])
def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path, name: str, wrong: str) -> None:
    with pytest.raises(LoadError, match=wrong) as caught:
        read_recording(str(tmp_path / name))
    assert len(str(caught.value).splitlines()) == 1


def test_control_characters_of_a_file_never_reach_the_terminal(tmp_path: Path) -> None:
    with pytest.raises(LoadError) as caught:
        read_recording(written(tmp_path, "t,demand\n0,\x1b[31mred\n"))
    assert str(caught.value).isprintable()


def test_a_quoted_field_over_two_lines_does_not_shift_the_line_of_a_later_fault(tmp_path: Path) -> None:
    path = written(tmp_path, 't,note,demand\n0,"two\nlines",1\n5,x,-1\n')
    with pytest.raises(LoadError, match=r":4: demand -1 is negative"):
        read_recording(path)
