"""What people look at: a run's folder read as it grows, the pages that show it, and the server behind the dashboard.

In: run folders and workspaces. Out: plain values a page draws (`RunReader.view`), the page itself, a local server.

    from headwater.monitor.web import RunReader; RunReader(Path("runs/4f2a")).view()["status"]
"""

from headwater.monitor.web.reader import RunReader
from headwater.monitor.web.runs import RunList

__all__ = ["RunList", "RunReader"]
