for (const [name, lesson] of Object.entries(lessons)) lesson(byId(`${name}.widget`));
