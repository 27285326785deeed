"""Every `python` and `console` block of the README and of docs/ is run, and what it prints is compared with the page.

Marks are comments above a block:

    <!-- docs-check: needs a GPU -->              not run by the tests; `make docs-check` runs it if the machine can
    <!-- output: depends on the run -->           run, with short training, but the output is not compared
    <!-- tolerance: 0.02 -->                      numbers may differ by so much; also in percent: 5 %

`…` stands for anything: within a line, or alone in a line for any number of lines. `# → 0.88` after a statement is the
value that it has or prints. A `text` block directly below a `python` block is what that one prints.
"""
