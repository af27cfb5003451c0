"""Lines that belong to a site and not to a text: navigation, cookie notices, share buttons, registration numbers.

They are known by what they say, in English and Chinese. A line goes only if it is nothing but such phrases: "Home |
About us | Contact us", "返回顶部", "分享到：微信 微博", "京ICP备12345678号". A sentence about cookies or copyright
stays, and so does a single word such as "home", which may end a sentence whose lines are broken.

    drop_lines("正文在这里。\\n京ICP备12345678号\\n分享到：微信 微博")     # ("正文在这里。", 2)
"""

from __future__ import annotations

import re
from collections.abc import Iterator

MOST_CHARACTERS = 120
"""Longer lines are text."""


def _phrases(lines: str) -> frozenset[str]:
    return frozenset(phrase.strip() for phrase in lines.split(","))


_SURE = _phrases(
    "skip to content, skip to main content, jump to navigation, jump to content, jump to search, back to top, "
    "scroll to top, toggle navigation, toggle menu, read more, show more, load more, view more, see more, "
    "continue reading, click here, share this, share this page, share this article, tweet this, email this, "
    "print this page, follow us, sign in, sign up, log in, log out, subscribe now, previous post, next post, "
    "previous article, next article, older posts, newer posts, older entries, newer entries, leave a comment, "
    "leave a reply, post a comment, add to cart, buy now, all rights reserved, terms of use, terms of service, "
    "terms and conditions, privacy policy, cookie policy, site map, sitemap, contact us, about us, related posts, "
    "related articles, related stories, accept all cookies, accept cookies, sponsored content, "
    "please enable javascript, javascript is disabled, comments are closed, comments off, 返回顶部, 返回首页, "
    "返回上一页, 返回列表, 回到顶部, 回到首页, 上一篇, 下一篇, 上一页, 下一页, 上一条, 下一条, 点击更多, "
    "点击查看更多, 查看更多, 查看全文, 查看原文, 查看详情, 阅读更多, 阅读全文, 阅读原文, 显示更多, 展开全文, "
    "加载更多, 点击进入, 相关文章, 相关推荐, 相关新闻, 相关链接, 热门文章, 热门推荐, 热门评论, 热门标签, 猜你喜欢, "
    "为您推荐, 友情链接, 网站地图, 联系我们, 关于我们, 加入收藏, 设为首页, 隐私政策, 隐私声明, 用户协议, 立即登录, "
    "立即注册, 立即购买, 立即下载, 发表评论, 全部评论, 暂无评论, 网友评论, 我要评论, 我要投稿, 我要留言, 登录注册"
)
"""Enough alone."""

_WEAK = _phrases(
    "home, menu, search, login, logout, register, subscribe, comments, comment, share, print, email, tweet, like, "
    "about, contact, privacy, terms, help, faq, news, products, services, support, blog, archive, archives, "
    "categories, tags, rss, facebook, twitter, instagram, youtube, linkedin, previous, next, top, advertisement, "
    "sponsored, accept, cart, account, 首页, 登录, 注册, 新闻, 产品, 服务, 帮助, 关于, 联系, 分享, 点赞, 收藏, "
    "举报, 打印, 评论, 转发, 搜索, 导航, 更多, 下载, 论坛, 免责声明, 版权声明, 微信, 微博, 朋友圈, 国内, 国际, "
    "体育, 娱乐, 财经, 科技, 视频, 图片, 专题"
)
"""Only in company: a line of at least three phrases, or with one of those above."""

LINE_BEGINNINGS = (
    "分享到", "分享至", "转发到", "转发至", "责任编辑：", "责任编辑:", "上一篇：", "上一篇:", "下一篇：",
    "下一篇:", "扫一扫", "扫码关注", "长按识别", "微信扫", "关注公众号", "关注微信公众号", "当前位置：",
    "当前位置:", "您的位置：", "您的位置:", "您现在的位置", "share on ", "follow us on ", "powered by ",
    "click here to ", "you must be logged in",
)  # fmt: skip
_MOST_AFTER_BEGINNING = 50
_SENTENCE_END = re.compile(r"[。！？；，]|[.!?](?:\s|$)")

_NOTICE = re.compile(
    r"(?:.{0,40}[\s:：\]】)）|])?[京津沪渝冀晋辽吉黑苏浙皖闽赣鲁豫鄂湘粤桂琼川蜀贵黔云滇藏陕甘青宁新蒙]\s?ICP\s?[备证]\s?案?\s?号?\s?\d{4,}.{0,60}|"
    r".{0,20}公网安备\s?\d{6,}号?.{0,40}|"
    r".{0,30}(?:电信业务经营|网络文化经营|新闻信息服务|视听节目)许可证(?:编?号)?[:：]?\s?[\w\u4e00-\u9fff()（）-]{0,12}\d{4,}.{0,30}|"
    r"(?!.*\bby\W*$)\W*(?:版权所有|copyright)\W{0,4}(?:(?:19|20)\d\d|©|\(c\)|（c）|&copy;)[^.。]{0,70}\.?"
    r"(?:\s*all rights reserved)?\W*|"
    r"\W*(?:©|\(c\)|（c）|&copy;)\s?(?:copyright\s)?(?:19|20)\d\d[^.。]{0,60}\.?(?:\s*all rights reserved)?\W*|"
    r"(?:版权声明[:：])?未经[^。]{0,15}(?:不得|禁止|严禁|请勿)[^。]{0,12}(?:转载|复制|使用)[^。]{0,10}。?|"
    r"(?:we|this (?:web)?site|our (?:web)?site) uses? cookies\b.{0,90}|"
    r"本(?:网)?站使用\s?cookies?.{0,60}|您的浏览器(?:不支持|版本过低).{0,40}",
    re.IGNORECASE,
)
_SIGN = re.compile(r"ICP|icp|安备|许可证|版权|opyright|©|\([cC]\)|&copy;|未经|ookie|浏览器")

EDGES = " \t\u3000.。!！…:：>»›→|·•-*#[]()（）【】_/"
_BETWEEN = re.compile(r"\s*[|·•/›»>→、]\s*|\s{2,}|\u3000|(?<=[\u4e00-\u9fff]) (?=[\u4e00-\u9fff])")


PHRASES = _SURE | _WEAK
_STARTS = frozenset(phrase[:2] for phrase in PHRASES.union(LINE_BEGINNINGS))
LONGER_STARTS = frozenset(phrase[:4] for phrase in PHRASES.union(LINE_BEGINNINGS))
"""What a line of phrases begins with: most lines of text do not, which is quick to see."""

MOST_IN_PHRASE = max(map(len, PHRASES.union(LINE_BEGINNINGS)))


def is_boilerplate(line: str, notices: bool = True) -> bool:
    """Whether a line is boilerplate by what it says; `notices` False says that the text has no sign of a notice."""
    if len(line) > MOST_CHARACTERS:
        return False
    bare = line.strip(EDGES)
    lowered = bare.lower()
    if lowered[:2] in _STARTS and not LONGER_STARTS.isdisjoint((lowered[:2], lowered[:3], lowered[:4])):
        if lowered in _SURE:
            return True
        if (
            lowered.startswith(LINE_BEGINNINGS)
            and len(bare) <= _MOST_AFTER_BEGINNING
            and not _SENTENCE_END.search(bare)
        ):
            return True
        parts = [part.strip(EDGES).lower() for part in _BETWEEN.split(bare) if part]
        if len(parts) > 1:
            sure = sum(part in _SURE for part in parts)
            weak = sum(part in _WEAK for part in parts)
            if sure + weak == len(parts) and (sure >= 1 or weak >= 3):
                return True
    return notices and _SIGN.search(line) is not None and _NOTICE.fullmatch(line.strip()) is not None


def notice_lines(text: str) -> Iterator[str]:
    """Lines of a text, not too long for it, that have the sign of a site's notice."""
    for match in _SIGN.finditer(text):
        start = text.rfind("\n", max(0, match.start() - MOST_CHARACTERS), match.start()) + 1
        end = text.find("\n", match.end(), start + MOST_CHARACTERS + 1)
        if start or match.start() <= MOST_CHARACTERS:
            yield text[start : end if end >= 0 else start + MOST_CHARACTERS + 1]


def drop_lines(text: str) -> tuple[str, int]:
    """The text without its boilerplate lines, and how many there were."""
    notices = _SIGN.search(text) is not None
    lines = text.split("\n")
    if not notices:  # `is_boilerplate` would see nothing but phrases: no call for a line that does not begin as one
        possible = [line for line in lines if line.lstrip(EDGES)[:2].lower() in _STARTS]
        if not any(is_boilerplate(line, False) for line in possible):
            return text, 0
    kept = [line for line in lines if not line or not is_boilerplate(line, notices)]
    return ("\n".join(kept), len(lines) - len(kept)) if len(kept) < len(lines) else (text, 0)
