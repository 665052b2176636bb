"""Write the dashboards: ``python -m monitoring.dashboards``."""

from monitoring.dashboards.layout import FOLDER, files

for _name, _text in files().items():
    (FOLDER / _name).write_text(_text)
