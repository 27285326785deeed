"""headway show: a file per sub-command, each a thin shell over a function of `headway.analysis`."""

from headway.cli.help import CommandApp
from headway.cli.show import attention, curves, model, routing, sampling, sensitivity

app = CommandApp(help="Show what happens inside models and runs, as text and as a plot.")

app.command("curves")(curves.curves)
app.command("model")(model.show_model)
app.command("sampling")(sampling.sampling)
app.command("attention")(attention.attention)
app.command("sensitivity")(sensitivity.sensitivity)
app.command("routing")(routing.routing)
