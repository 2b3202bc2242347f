for (const [name, lesson] of Object.entries(lessons)) lesson(getById(`${name}.widget`));
