"""An interactive page: choose model, hardware, layout, formats and load; figures and numbers follow at once.

question   what is asked: a choice from menus and a load
answer     everything the page shows about it, as plain data
table      the same for a grid of questions, for a page without a server
page       the HTML of both
server     the page on localhost
"""

from roofline.explore.page import export
from roofline.explore.question import Menu, Question, menu, question_of
from roofline.explore.server import serve

__all__ = ["Menu", "Question", "export", "menu", "question_of", "serve"]
