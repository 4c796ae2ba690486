"""In the place of a library that takes a second to import, in each of the hundred processes that the tests start.

jsonschema imports it, where it is installed, to check addresses in notebooks and settings; there are none to check. It does
without where the import fails. conftest.py puts this folder ahead.
"""

raise ImportError("not needed in tests")
