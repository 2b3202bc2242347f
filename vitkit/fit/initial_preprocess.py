"""The preprocessing of a run: chosen by its images when it begins, and kept when it resumes."""

from pathlib import Path

from vitkit.bundle.folder import INPUT_FILES
from vitkit.data.data_module import Data
from vitkit.data.image_data import ImageData
from vitkit.data.pixel_values import choose_preprocess, format_pixel_values, survey_pixel_values
from vitkit.data.preprocess import Preprocess
from vitkit.support.files import read_json


def adapt_preprocess(data: Data, model: Path | None) -> list[str]:
    """Choose the window and the background that the config leaves open, and return lines about the images.

    Args: model: the model folder of a run that resumes, whose preprocessing is kept.
    """
    if not isinstance(data, ImageData):
        return []
    if model is not None:
        path = model / INPUT_FILES["images"]
        saved = Preprocess.from_dict(read_json(path)) if path.is_file() else data.preprocess
        data.change_preprocess(saved.window, saved.background)
        return []
    survey = survey_pixel_values(data.source, data.training, data.preprocess)
    preprocess = choose_preprocess(data.preprocess, survey)
    data.change_preprocess(preprocess.window, preprocess.background)
    return format_pixel_values(preprocess, survey)
