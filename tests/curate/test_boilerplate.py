"""Lines of a site, not of a text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.curate.boilerplate import drop_lines, is_boilerplate
from headwater.curate.clean import clean_document

SITE = """
京ICP备12345678号
粤ICP备2021000001号-1 粤公网安备 44010602000001号
沪公网安备 31010602000001号
增值电信业务经营许可证：京B2-20190001
版权所有 © 2020 某某公司
Copyright © 2010-2020 Example Ltd. All rights reserved.
© 2021 Example Ltd
未经授权不得转载
分享到：微信 微博
返回顶部
上一篇：春天的花
责任编辑：张三
点击查看更多
首页 > 新闻 > 国内
首页 | 登录 | 注册 | 帮助
扫一扫关注公众号
关于我们 | 联系我们 | 网站地图
相关文章 · 相关推荐
Skip to content
Home | About us | Contact us
Read more...
Share on Facebook
» Next post
Sign in / Sign up
Privacy Policy | Terms of Use
This site uses cookies to improve your experience.
## Related posts
All rights reserved.
Leave a reply
"""

TEXT = """
home.
Search
He went home | slowly
First, read more books.
The privacy policy of the firm was new.
Cookies are baked for ten minutes.
This site uses a generator.
Copyright law protects authors.
Copyright, 1917, by
1. Sign in with your account and open the page.
Next, we go on.
- home
我们返回首页看看新闻。
版权所有者应当承担责任。
分享到朋友圈的文章很多，大家都很喜欢。
他在网站上登录。
新闻
悬挂《网络文化经营许可证》和营业执照。
上一篇文章里我们谈到了春天。
点击按钮后，程序会弹出窗口。
作者：鲁迅
"""


@pytest.mark.parametrize("line", SITE.strip().split("\n"))
def test_lines_of_a_site_go(line: str) -> None:
    assert is_boilerplate(line)
    assert drop_lines(f"正文在这里。\n{line}\nThe text goes on.") == ("正文在这里。\nThe text goes on.", 1)


@pytest.mark.parametrize("line", TEXT.strip().split("\n"))
def test_lines_of_a_text_stay(line: str) -> None:
    assert not is_boilerplate(line)


def test_only_domains_of_the_web_lose_lines_and_the_loss_is_counted() -> None:
    text = "今天天气很好，我们一起去公园散步，看到了许多花。\n\n返回顶部\n京ICP备12345678号"
    cleaned = clean_document(text, domain="web")
    assert cleaned.text == "今天天气很好，我们一起去公园散步，看到了许多花。"
    assert cleaned.edits == {"boilerplate": 2}
    assert clean_document(text, domain="books").text == text


def test_code_blocks_keep_such_lines() -> None:
    text = "页面底部这样写，就能让读者回到页面的开头：\n\n```\nBack to top\n```"
    assert clean_document(text, domain="web").text == text


@given(st.text(st.sampled_from("返回顶部 首页登录|>·\n.abc Read more"), max_size=60))
def test_dropping_twice_changes_nothing_more(text: str) -> None:
    once, _ = drop_lines(text)
    assert drop_lines(once) == (once, 0)
