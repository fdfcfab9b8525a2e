"""A line of the work log says which process wrote it, and how who asked for it had come in."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("coordination", "0007_dashboard_indexes")]

    operations = [
        migrations.AddField(
            "worklogentry",
            "door",
            models.CharField(blank=True, db_default="", default="", max_length=16),
        ),
        migrations.AddField(
            "worklogentry",
            "node_id",
            models.CharField(blank=True, db_default="", default="", max_length=128),
        ),
    ]
