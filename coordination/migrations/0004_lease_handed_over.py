"""The audit tells a shutdown's hand-over from a run that ended or parked."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("coordination", "0003_run_repeatable")]

    operations = [
        migrations.AlterField(
            "lease",
            "end",
            models.CharField(
                blank=True,
                choices=[
                    ("released", "Released"),
                    ("handed_over", "Handed Over"),
                    ("crashed", "Crashed"),
                    ("lease_expired", "Expired"),
                    ("fenced", "Fenced"),
                ],
                max_length=16,
            ),
        ),
    ]
