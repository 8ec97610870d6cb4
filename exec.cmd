@rem The scripts of package.json say `exec`, so that npm's signals reach node itself and not a shell. cmd.exe has no such word.
@%*
