"""A window that shows frames, with Tk."""

import time

from torch import Tensor
from torch.nn import functional as F

MAX_SCREEN_SHARE = 0.9
"""The largest share of the screen's height and width, which leaves room for bars and frames."""


class DisplayWindow:
    """A window on the screen, until the user closes it or presses q or Escape.

    All calls must come from the thread that made the window. Call update regularly while there is nothing to show, so
    that keys and clicks are handled.
    """

    def __init__(self, title: str):
        try:
            import tkinter  # not every Python has it
        except ImportError:
            raise OSError(
                "There is no display for --show: this Python comes without tkinter. "
                "Install it (on Debian and Ubuntu: apt install python3-tk), or write a file instead."
            ) from None
        try:
            self.root = tkinter.Tk(className="streamseg")
        except tkinter.TclError as error:
            raise OSError(
                f"There is no display for --show: {error}. "
                "Run it on a desktop or through ssh -X, or write a file instead."
            ) from None
        self.closed = False
        self.root.withdraw()  # until there is a frame
        self.root.title(title)
        self.root.resizable(False, False)
        self.root.protocol("WM_DELETE_WINDOW", self.close)
        for key in ("q", "Q", "<Escape>"):
            self.root.bind(key, lambda event: self.close())
        self.picture = tkinter.PhotoImage(master=self.root)
        tkinter.Label(self.root, image=self.picture, borderwidth=0, highlightthickness=0).pack()

    @property
    def room(self) -> tuple[int, int]:
        """The largest height and width of a frame on this screen."""
        return (
            int(MAX_SCREEN_SHARE * self.root.winfo_screenheight()),
            int(MAX_SCREEN_SHARE * self.root.winfo_screenwidth()),
        )

    def show(self, frame: Tensor) -> None:
        """Show a frame, reduced to the size of the screen; do nothing if the window is closed."""
        if self.closed:
            return
        frame = shrink_to_fit(frame.cpu(), self.room)
        _, height, width = frame.shape
        pixels = frame.permute(1, 2, 0).contiguous().numpy().tobytes()
        self.picture.configure(data=b"P6 %d %d 255\n" % (width, height) + pixels, format="PPM")
        if self.root.state() == "withdrawn":
            self.root.deiconify()
        self.update()

    def update(self) -> None:
        """Handle keys and clicks."""
        if not self.closed:
            self.root.update()

    def wait(self) -> None:
        """Wait until the user closes it."""
        while not self.closed:
            self.update()
            time.sleep(0.02)

    def close(self) -> None:
        """Close the window."""
        if not self.closed:
            self.closed = True
            self.root.destroy()


def shrink_to_fit(frame: Tensor, limit: tuple[int, int]) -> Tensor:
    """Return a frame (3, H, W), reduced if it exceeds a height and width."""
    _, height, width = frame.shape
    scale = min(limit[0] / height, limit[1] / width)
    if scale >= 1:
        return frame
    # torch fails at a single pixel
    size = (max(1, round(scale * height)), max(2, round(scale * width)))
    return F.interpolate(frame[None], size, mode="bilinear", antialias=True)[0]
