"""Personal data is masked by kind; what only looks like it stays."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.curate.clean import clean_document
from headwater.curate.config import CleanConfig, CurateConfig
from headwater.curate.pii import KINDS, is_chinese_id, luhn, mask

FOUND = [
    ("email", "Write to jane.doe+news@mail.company.co.uk today.", "Write to [EMAIL] today."),
    ("email", "邮箱zhang_san@163.com。", "邮箱[EMAIL]。"),
    ("email", "<mailto:a-b@c-d.org>", "<mailto:[EMAIL]>"),
    ("ip", "The server is at 52.85.89.103.", "The server is at [IP]."),
    ("ip", "http://52.85.89.103:8080/x", "http://[IP]:8080/x"),
    ("ip", "服务器地址：114.114.114.114", "服务器地址：[IP]"),
    ("ip", "Its IP 1.2.3.4 is known.", "Its IP [IP] is known."),
    ("ip", "2001:4860:4860::8888 answers", "[IP] answers"),
    ("ip", "2a00:1450:4001:0831:0000:0000:0000:200e", "[IP]"),
    ("phone", "联系13812345678。", "联系[PHONE]。"),
    ("phone", "手机 138-1234-5678 或 138 1234 5679", "手机 [PHONE] 或 [PHONE]"),
    ("phone", "+86 138 1234 5678", "[PHONE]"),
    ("phone", "+8613812345678", "[PHONE]"),
    ("phone", "（13812345678）", "（[PHONE]）"),
    ("phone", "座机010-62345678", "座机[PHONE]"),
    ("phone", "(0571)87654321", "[PHONE]"),
    ("phone", "Call (415) 555-2671 or 415-555-2672.", "Call [PHONE] or [PHONE]."),
    ("phone", "1-800-555-2671", "[PHONE]"),
    ("phone", "London: +44 20 7946 0958", "London: [PHONE]"),
    ("phone", "tel: +442079460958", "tel: [PHONE]"),
    ("phone", "Tel. +49 (0)30 901820", "Tel. [PHONE]"),
    ("phone", "13812345678 13912345678", "[PHONE] [PHONE]"),
    ("id", "身份证11010519491231002X号", "身份证[ID]号"),
    ("id", "440524188001010014", "[ID]"),
    ("id", "11010519491231002x", "[ID]"),
    ("card", "4111 1111 1111 1111", "[CARD]"),
    ("card", "卡号：6222021234567890128", "卡号：[CARD]"),
    ("card", "5500-0055-5555-5559", "[CARD]"),
    ("card", "3782 822463 10005", "[CARD]"),
]


@pytest.mark.parametrize(("kind", "text", "masked"), FOUND, ids=[f"{kind}-{n}" for n, (kind, *_) in enumerate(FOUND)])
def test_personal_data_is_masked_and_counted(kind: str, text: str, masked: str) -> None:
    found, counts = mask(text)
    assert found == masked
    assert counts == {kind: masked.count("[")}
    assert mask(found) == (found, {})
    assert mask(text, [other for other in KINDS if other != kind])[0] == text


LOOK_ALIKES = [
    "ISBN 978-3-16-148410-0 and 978-7-111-40772-0, ISSN 0317-8471",
    "ISBN 7-302-12260-0",
    "1609459200, 1609459200000 and 1609459200000000 are timestamps",
    "2021-01-02 12:30:45, 20210102123045, 2021/01/02 12:30",
    "version 1.2.3.4, v10.20.30.40, Python 3.11.4.1, opencv-python==4.5.5.64",
    "Chrome/120.0.6099.109 Chrome/91.0.0.0 foo-1.2.3.4.tar.gz",
    "见第4.3.2.1节，版本 8.11.21.31",
    "127.0.0.1 192.168.1.10 10.0.0.1 172.16.0.1 0.0.0.0 255.255.255.255 203.0.113.7 224.0.0.1",
    "999.999.999.999 and 1.2.3 and 1.2.3.4.5",
    "12:30:45 and std::map and a::b and 10:20:30:40:50:60",
    "git@github.com:owner/repo.git and logo@2x.png and user@example.com and @handle and a@b",
    "A@B.T and x @ y and https://medium.com/@someone and npm i react@18.2.0",
    "订单号 13812345678，流水号：6222021234567890128，QQ 13812345678",
    "order 4111111111111111, tracking 4111 1111 1111 1111",
    "4111 1111 1111 1112 and 1234567890123456 have no check digit",
    "110105194912310021 and 110105194913310020 and 990105194912310020 are no identity numbers",
    "3.14159265358979, 0.4539578763621486, 1,234,567,890, 5 000 000 000",
    "1912-1949 1949-2020, pages 123-456-789, 10-20-30",
    "https://shop.cn/item/13812345678 and id=4111111111111111 and #13812345678",
    "sha 3782822463100054111111111111111138 and 0x4111111111111111",
    "2^31 = 2147483648, 2147483647, 4294967296",
    "人口1380000000，产量13800000000吨是140000000000的一部分",
    "The scores were 555 123 4567 in the table",
]


@pytest.mark.parametrize("text", LOOK_ALIKES)
def test_what_only_looks_alike_stays(text: str) -> None:
    assert mask(text) == (text, {})


def test_check_digits() -> None:
    assert is_chinese_id("11010519491231002X")
    assert not is_chinese_id("110105194912310021")
    assert luhn("4111111111111111")
    assert not luhn("4111111111111112")
    assert not luhn("0000000000000000")


def test_code_keeps_what_looks_like_personal_data() -> None:
    code = "ADMIN = 'root@company.org'  # 13812345678\n" * 2
    assert clean_document(code, lang="python").text == code.strip("\n")
    text = "写信给 `root@company.org` 即可，这里是正文内容。\n\n```\nroot@company.org\n```\n\n或者 root@company.org。"
    cleaned = clean_document(text)
    assert cleaned.text == text.replace("或者 root@company.org", "或者 [EMAIL]")
    assert cleaned.edits == {"email": 1}


def test_masking_can_be_turned_off_or_limited() -> None:
    text = "写信给 root@company.org 或者致电 13812345678，我们随时在线。"
    none = CurateConfig(clean=CleanConfig(pii=()))
    assert clean_document(text, config=none).text == text
    phones = CurateConfig(clean=CleanConfig(pii=("phone",)))
    assert clean_document(text, config=phones).edits == {"phone": 1}
    with pytest.raises(ValueError, match="passport"):
        CleanConfig(pii=("passport",))


@given(st.text(st.sampled_from("0123456789 -.+()/@:ab[]xX电话v"), max_size=80))
def test_masking_twice_changes_nothing_more(text: str) -> None:
    masked, _ = mask(text)
    assert mask(masked) == (masked, {})


@pytest.mark.parametrize("piece", ["1", "1-", "1 ", "1.", "@", "a@", "a@b.", "2001:", "(", "+1", "a.b-c_d+"])
def test_a_million_repeats_take_linear_time(piece: str) -> None:
    mask(piece * (1_000_000 // len(piece)))
