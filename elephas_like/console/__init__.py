"""The command line: `python -m elephas_like demo | doctor | version`.

command  arguments and exit codes
doctor   what a fit would find on this machine
demo     a small fit on real rows
java     which Java Spark would start

Nothing outside the standard library is imported before a command needs it: the doctor has to run where packages are missing.
"""
