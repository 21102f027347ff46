from xpk.cli.main import run

run()
