"""People see who works where: a row for each worker node."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("coordination", "0005_dead_letters")]

    operations = [
        migrations.CreateModel(
            name="WorkerNode",
            fields=[
                ("id", models.CharField(max_length=128, primary_key=True, serialize=False)),
                ("host", models.CharField(max_length=255)),
                ("pid", models.PositiveIntegerField()),
                ("processes", models.PositiveIntegerField()),
                ("concurrency", models.PositiveIntegerField()),
                ("cpus", models.PositiveIntegerField()),
                ("load", models.FloatField(null=True)),
                ("runners", models.JSONField(blank=True, default=list)),
                ("started_at", models.DateTimeField()),
                ("beat_at", models.DateTimeField()),
                ("left_at", models.DateTimeField(null=True)),
            ],
        ),
    ]
