"""Personal data in prose: e-mail and public IP addresses, phone and bank card numbers, Chinese identity numbers.

Each find is checked (checksums, number plans, what stands around it) and replaced by a placeholder that names its
kind. What only looks alike stays: versions, timestamps, ISBNs, order numbers, private networks, documentation
addresses. Code blocks and inline code are the caller's to leave out.

    mask("写信给 zhang@mail.cn，电话 138-1234-5678")     # ("写信给 [EMAIL]，电话 [PHONE]", {"email": 1, "phone": 1})
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from datetime import date

EMAIL, IP, PHONE, ID, CARD = KINDS = ("email", "ip", "phone", "id", "card")
PLACEHOLDERS = {EMAIL: "[EMAIL]", IP: "[IP]", PHONE: "[PHONE]", ID: "[ID]", CARD: "[CARD]"}

VERSION = 1

_USER = re.compile(r"(?<![\w.+%/@-])[A-Za-z0-9](?:[\w.+%-]{0,62}[A-Za-z0-9_+-])?$", re.ASCII)
_HOST = re.compile(
    r"(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?\.){1,6}[A-Za-z]{2,18}(?![\w@-]|\.[A-Za-z0-9])", re.ASCII
)
_NO_USERS = frozenset(["git", "svn", "hg"])
_NO_HOSTS = re.compile(r"(?:^|\.)(?:example\.(?:com|org|net|edu|cn)|example|invalid|test|localhost|local)$")


def _words(line: str) -> frozenset[str]:
    return frozenset(line.split())


_FILE_ENDINGS = _words(
    "png jpg jpeg gif svg webp bmp ico css js ts jsx tsx json py html htm xml yml yaml md txt mp3 mp4 pdf zip gz exe "
    "dll service socket target mount timer slice"
)

# The patterns begin with a digit, so that text without digits costs next to nothing; what stands around is looked at
# afterwards.
_NUMBER = re.compile(r"[0-9](?:[ .()/\-\u2010-\u2013\u00a0]{0,2}[0-9]){6,}+[Xx]?(?![A-Za-z0-9_@])")
_PIECE = re.compile(r"[^ /\u00a0]+")
_NO_DIGITS = re.compile(r"[^0-9]+")
_MOST_CHARACTERS = 40  # of a number with its separators
_IPV4 = re.compile(r"[0-9]{1,3}(?:\.[0-9]{1,3}){3}(?![A-Za-z0-9_]|\.[A-Za-z0-9_]|-[A-Za-z0-9_])")
_IPV6 = re.compile(r"[23][0-9A-Fa-f]{3}:[0-9A-Fa-f:]{2,35}[0-9A-Fa-f:](?![A-Za-z0-9_:])")
_THREE_PARTS = re.compile(r"\.[0-9]{1,3}\.[0-9]{1,3}\.[0-9]")  # every IPv4 address has this: 20 times faster to find
_TWO_COLONS = re.compile(r":[0-9A-Fa-f]{0,4}:")
_NOT_BEFORE_NUMBER = re.compile(r"[A-Za-z0-9_.@#$\\/=]$|[A-Za-z0-9]-$")
_NOT_BEFORE_IP = re.compile(r"[A-Za-z0-9_.:]$|[A-Za-z0-9]-$|==$|(?<!/)/$")
_VERSION_BEFORE = re.compile(
    r"(?:\bv|\bver\.?|versions?|release|revision|build|firmware|sdk|driver|chapter|section|§|版本|版|版本号|第|节|章|条|固件|"
    r"驱动)[\s:：=(（]*$",
    re.IGNORECASE,
)
_IP_BEFORE = re.compile(
    r"(?:\bip(?:v4)?\b|address|host|server|dns|gateway|ping|地址|服务器|网关|主机)\W{0,3}(?:is|为|是)?\W{0,3}$", re.I
)

_PHONE_BEFORE = re.compile(
    r"(?:\btel|\btelephone|\bphone|\bcall|\bmobile|\bcell|\bfax|\bwhatsapp|\bcontact|电话|手机|致电|联系|热线|传真|拨打|微信)"
    r"[^\d\n]{0,12}$",
    re.IGNORECASE,
)
_OTHER_BEFORE = re.compile(
    r"(?:isbn|issn|doi|\border|\binvoice|tracking|serial|\bid\b|\bsku|\bno\.|\bnumber of|订单|单号|编号|书号|流水|运单|"
    r"序列号|批号|证书|型号|货号|\bqq|案号|文号|邮编|timestamp|时间戳)[^\n\d]{0,12}$",
    re.IGNORECASE,
)
_BEFORE_CHARACTERS = 28

_CHINESE_MOBILE = re.compile(r"(?:\+?86)?1(?:3\d|4[5-9]|5[0-35-9]|6[2567]|7[0-8]|8\d|9[0-35-9])\d{8}")
_CHINESE_MOBILE_FORM = re.compile(r"(?:\(?\+?86\)?[- ]?)?\d{3}([- ]?)\d{4}\1\d{4}")
_CHINESE_LANDLINE = re.compile(r"\(?0(?:10|2\d|[3-9]\d{2})\)?[- ]?[2-8]\d{6,7}")
_US = re.compile(r"(?:\+?1[ .-]?)?(?:\([2-9]\d{2}\) ?|[2-9]\d{2}([.-]))[2-9]\d{2}(?(1)\1|[ .-])\d{4}")
_LOCAL = re.compile(r"\d{3,4}[- ]?\d{4}")
_CALLING_CODES = _words(
    "1 7 20 27 30 31 32 33 34 36 39 40 41 43 44 45 46 47 48 49 51 52 53 54 55 56 57 58 60 61 62 63 64 65 66 81 82 84 "
    "86 90 91 92 93 94 95 98 211 212 213 216 218 220 221 223 224 225 226 227 228 229 230 231 232 233 234 235 236 237 "
    "238 239 240 241 242 243 244 245 248 249 250 251 252 253 254 255 256 257 258 260 261 262 263 264 265 266 267 268 "
    "269 290 291 297 298 299 350 351 352 353 354 355 356 357 358 359 370 371 372 373 374 375 376 377 378 380 381 382 "
    "383 385 386 387 389 420 421 423 500 501 502 503 504 505 506 507 508 509 590 591 592 593 594 595 596 597 598 599 "
    "670 672 673 674 675 676 677 678 679 680 681 682 683 685 686 687 688 689 690 691 692 850 852 853 855 856 880 886 "
    "960 961 962 963 964 965 966 967 968 970 971 972 973 974 975 976 977 992 993 994 995 996 998"
)
_PROVINCES = _words(
    "11 12 13 14 15 21 22 23 31 32 33 34 35 36 37 41 42 43 44 45 46 50 51 52 53 54 61 62 63 64 65 71 81 82 83"
)
_CARD = re.compile(
    r"4\d{12}(?:\d{3}){0,2}|5[1-5]\d{14}|2(?:22[1-9]|2[3-9]\d|[3-6]\d{2}|7[01]\d|720)\d{12}|3[47]\d{13}|"
    r"3(?:0[0-5]|[68]\d)\d{11}|35(?:2[89]|[3-8]\d)\d{12}|6(?:011|5\d{2}|4[4-9]\d)\d{12}|62\d{14,17}|9558\d{15}"
)
_CARD_FORM = re.compile(
    r"\d{13,19}|\d{4}([ -])\d{4}\1\d{4}\1\d{1,4}(?:\1\d{1,3})?|\d{4}([ -])\d{6}\2\d{4,5}|\d{6}([ -])\d{10,13}"
)


def mask(text: str, kinds: Collection[str] = KINDS) -> tuple[str, dict[str, int]]:
    """The text with placeholders in place of personal data of these kinds, and how many of each were found."""
    counts: dict[str, int] = {}
    if EMAIL in kinds and "@" in text:
        text = _replaced(text, _emails(text), counts)
    if IP in kinds:
        if _THREE_PARTS.search(text):
            text = _replaced(text, _found(_IPV4, text, _is_ipv4, IP), counts)
        if _TWO_COLONS.search(text):
            text = _replaced(text, _found(_IPV6, text, _is_ipv6, IP), counts)
    if PHONE in kinds or ID in kinds or CARD in kinds:
        text = _replaced(text, _numbers(text, kinds), counts)
    return text, counts


Span = tuple[int, int, str]
"""Start, end, kind."""


def _replaced(text: str, spans: Iterable[Span], counts: dict[str, int]) -> str:
    parts, at = [], 0
    for start, end, kind in spans:
        parts += [text[at:start], PLACEHOLDERS[kind]]
        counts[kind] = counts.get(kind, 0) + 1
        at = end
    return "".join([*parts, text[at:]]) if parts else text


def _found(pattern: re.Pattern[str], text: str, check: Callable[[str, str], bool], kind: str) -> Iterator[Span]:
    for match in pattern.finditer(text):
        if check(match[0], text[max(0, match.start() - _BEFORE_CHARACTERS) : match.start()]):
            yield match.start(), match.end(), kind


def _emails(text: str) -> Iterator[Span]:
    done = 0
    at = text.find("@")
    while at >= 0:
        host = _HOST.match(text, at + 1)
        user = _USER.search(text[max(done, at - 65) : at]) if host else None
        if host and user and _is_email(user[0], host[0].lower()):
            done = host.end()
            yield at - len(user[0]), done, EMAIL
        at = text.find("@", at + 1)


def _is_email(user: str, host: str) -> bool:
    known = user.lower() in _NO_USERS or host.rpartition(".")[2] in _FILE_ENDINGS or _NO_HOSTS.search(host)
    return not known and ".." not in user


def _is_ipv4(address: str, before: str) -> bool:
    if _NOT_BEFORE_IP.search(before) or not _is_public(address) or _VERSION_BEFORE.search(before):
        return False
    small = all(int(part) < 20 for part in address.split("."))  # 4.3.2.1 is a version or a section
    return not small or _IP_BEFORE.search(before) is not None or before.endswith("://")


def _is_ipv6(address: str, before: str) -> bool:
    return not _NOT_BEFORE_IP.search(before) and _is_public(address)


def _is_public(address: str) -> bool:
    """Whether it is an address of the public internet; not private, not for documentation, no mask or broadcast."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    return parsed.is_global and not parsed.is_multicast and not address.endswith(".0.0")


def _numbers(text: str, kinds: Collection[str]) -> Iterator[Span]:
    done = 0
    for match in _NUMBER.finditer(text):
        start = match.start()
        while start > max(done, match.start() - 2) and text[start - 1] in "+(":
            start -= 1
        if _NOT_BEFORE_NUMBER.search(text[max(0, start - 2) : start]):
            continue
        if (found := _number(text, start, match.end(), kinds)) is not None:
            yield found
            done = match.end()
            continue
        for piece in _PIECE.finditer(text, start, match.end()):  # several numbers with a space between
            if (found := _number(text, piece.start(), piece.end(), kinds)) is not None:
                yield found
                done = match.end()


def _number(text: str, start: int, end: int, kinds: Collection[str]) -> Span | None:
    if not 7 <= end - start <= _MOST_CHARACTERS:
        return None
    run = text[start:end]
    if run.startswith("(") and run.count("(") > run.count(")"):  # "(138 1234 5678" of "(138 1234 5678)"
        run, start = run[1:], start + 1
    kind = _kind_of(run, text[max(0, start - _BEFORE_CHARACTERS) : start], kinds)
    return (start, end, kind) if kind is not None else None


def _kind_of(run: str, before: str, kinds: Collection[str]) -> str | None:
    """Which number of a person a run of digits is, if any."""
    if ID in kinds and is_chinese_id(run):
        return ID
    digits = _NO_DIGITS.sub("", run)
    if CARD in kinds and _CARD_FORM.fullmatch(run) and _CARD.fullmatch(digits) and luhn(digits):
        kind = CARD
    elif PHONE in kinds and is_phone(run, digits, before):
        kind = PHONE
    else:
        return None
    return None if _OTHER_BEFORE.search(before) else kind


def is_chinese_id(number: str) -> bool:
    """Whether 18 characters are a resident identity number: province, date of birth, ISO 7064 mod 11-2 check."""
    if len(number) != 18 or not number[:17].isdigit() or number[:2] not in _PROVINCES:
        return False
    try:
        born = date(int(number[6:10]), int(number[10:12]), int(number[12:14]))
    except ValueError:
        return False
    total = sum(int(digit) * pow(2, 17 - place, 11) for place, digit in enumerate(number[:17]))
    return 1880 <= born.year <= 2050 and "10X98765432"[total % 11] == number[17].upper()


def luhn(digits: str) -> bool:
    """Whether a card number's check digit is right (ISO/IEC 7812-1)."""
    total = 0
    for place, digit in enumerate(reversed(digits)):
        value = int(digit) * (1 + place % 2)
        total += value - 9 if value > 9 else value
    return total % 10 == 0 and len(set(digits)) > 1


def is_phone(run: str, digits: str, before: str = "") -> bool:
    """Whether a run of digits is written as a phone number is: Chinese mobile and landline, US, or international.

    `before` is what stands before it: an international number without separators needs a word such as "phone" there.
    """
    if digits.endswith("000000"):  # a round number
        return False
    plain = digits.removeprefix("86") if run.lstrip("(").startswith(("+86", "86")) and len(digits) == 13 else digits
    if len(plain) == 11 and _CHINESE_MOBILE.fullmatch(plain) and _CHINESE_MOBILE_FORM.fullmatch(run):
        return True
    if _CHINESE_LANDLINE.fullmatch(run) and (not run.isdigit() or _PHONE_BEFORE.search(before)):
        return True
    if _US.fullmatch(run):
        return True
    if not run.startswith("+"):
        local = 7 <= len(digits) <= 11 and _LOCAL.fullmatch(run) is not None
        return local and _PHONE_BEFORE.search(before) is not None
    known = any(digits[:length] in _CALLING_CODES for length in (1, 2, 3))
    written = re.search(r"[ .()-]", run) is not None
    return known and 8 <= len(digits) <= 15 and (written or _PHONE_BEFORE.search(before) is not None)
