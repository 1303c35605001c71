/** A name that every file system takes. */
export const fileName = (text: string): string => text.replace(/[^\w.-]+/g, "-").slice(0, 60) || "headcount";
