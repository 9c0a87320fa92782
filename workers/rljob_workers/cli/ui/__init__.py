"""`rljob ui`: runs of this machine in a browser. `views` says what is shown, `server` answers the browser."""
