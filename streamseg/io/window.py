"""A window that shows frames as they come. Tk lives here and nowhere else."""

import time

from torch import Tensor
from torch.nn import functional as F

ROOM = 0.9
"""The share of the screen's height and width that a window may take, for there are bars and frames around it."""


class Window:
    """A window on the screen, until its user closes it or presses q or Escape.

    Tk wants all its calls from one thread: the one that made the window. Whoever shows nothing for a while calls
    update, so that keys and clicks are heard.
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
        self.root.withdraw()  # until there is something to see
        self.root.title(title)
        self.root.resizable(False, False)
        self.root.protocol("WM_DELETE_WINDOW", self.close)
        for key in ("q", "Q", "<Escape>"):
            self.root.bind(key, lambda event: self.close())
        self.picture = tkinter.PhotoImage(master=self.root)
        tkinter.Label(self.root, image=self.picture, borderwidth=0, highlightthickness=0).pack()

    def show(self, frame: Tensor) -> None:
        """Show a frame, made smaller if the screen is; nothing happens if the window was closed."""
        if self.closed:
            return
        room = (int(ROOM * self.root.winfo_screenheight()), int(ROOM * self.root.winfo_screenwidth()))
        frame = shrink_to_fit(frame.cpu(), room)
        _, height, width = frame.shape
        pixels = frame.permute(1, 2, 0).contiguous().numpy().tobytes()
        self.picture.configure(data=b"P6 %d %d 255\n" % (width, height) + pixels, format="PPM")
        if self.root.state() == "withdrawn":
            self.root.deiconify()
        self.update()

    def update(self) -> None:
        """Hear what the user does."""
        if not self.closed:
            self.root.update()

    def wait(self) -> None:
        """Stay until the user closes it."""
        while not self.closed:
            self.update()
            time.sleep(0.02)

    def close(self) -> None:
        """Take the window away."""
        if not self.closed:
            self.closed = True
            self.root.destroy()


def shrink_to_fit(frame: Tensor, room: tuple[int, int]) -> Tensor:
    """A frame (3, H, W), made smaller where it is larger than a height and width."""
    _, height, width = frame.shape
    scale = min(room[0] / height, room[1] / width)
    if scale >= 1:
        return frame
    # torch fails at a single pixel
    size = (max(1, round(scale * height)), max(2, round(scale * width)))
    return F.interpolate(frame[None], size, mode="bilinear", antialias=True)[0]
