"""Train, use and export a tokenizer.

tokenizer = Tokenizer.load("workspace/tokenizer/0123456789abcdef")
tokenizer.encode("Headwater 处理中文。")
"""

from headwater.tokenizer.tokenizer import Tokenizer

__all__ = ["Tokenizer"]
